// The tests that judge the SBOM of a release by the official schema of CycloneDX. It is a
// module of its own, so that the judges are no dependency of the product.
module eventhub/internal/release/oracle

go 1.26.0

require (
	github.com/CycloneDX/cyclonedx-go v0.12.0
	github.com/santhosh-tekuri/jsonschema/v6 v6.0.3
)

require golang.org/x/text v0.14.0 // indirect
