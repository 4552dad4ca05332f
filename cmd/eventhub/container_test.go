package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// dockerfile returns the last instruction of that name in the Dockerfile.
func dockerfile(t *testing.T, instruction string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	joined := strings.ReplaceAll(string(text), "\\\n", " ")
	all := regexp.MustCompile(`(?m)^`+instruction+`\s+(.*)$`).FindAllStringSubmatch(joined, -1)
	if len(all) == 0 {
		t.Fatalf("the Dockerfile has no %s", instruction)
	}
	return all[len(all)-1][1]
}

// inContainer runs the program of the image with nothing but the image's environment:
// no PATH, no HOME, no user that anybody has heard of.
func inContainer(t *testing.T, extra []string, args ...string) (code int, output string) {
	t.Helper()
	cmd := exec.Command(binary, args...)
	cmd.Dir, cmd.Env = t.TempDir(), append(strings.Fields(dockerfile(t, "ENV")), extra...)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

// TestImage: the settings of the image are those of a hub that others can reach. It
// refuses to start without a token, and its probe looks where it listens.
func TestImage(t *testing.T) {
	for instruction, want := range map[string]string{"FROM": "scratch", "USER": "65532:65532", "ENTRYPOINT": `["/eventhub"]`, "CMD": `["serve"]`, "VOLUME": "/data"} {
		if got := dockerfile(t, instruction); got != want {
			t.Errorf("%s is %s; want %s", instruction, got, want)
		}
	}
	code, out := inContainer(t, nil, "serve")
	if code != exitUsage || strings.Count(out, "is open to the network and no authentication is configured: set AUTH_TOKEN") != 3 {
		t.Errorf("serve without a token ended with %d:\n%s", code, out)
	}
	code, out = inContainer(t, []string{"EVENTHUB_AUTH_TOKEN=s3cret"}, "config", "check")
	if code != exitDone || strings.Contains(out, "unknown") {
		t.Errorf("config check with a token ended with %d:\n%s", code, out)
	}
	for _, want := range []string{"store /data", "ws 0.0.0.0:8090", "http 0.0.0.0:8081", "ops 0.0.0.0:8082"} {
		if !strings.Contains(out, want) {
			t.Errorf("config check does not say %q:\n%s", want, out)
		}
	}
	hub := startHub(t, "--store", "memory:", "--auth-token", "s3cret")
	var probe []string
	_, command, _ := strings.Cut(dockerfile(t, "HEALTHCHECK"), "CMD ")
	if err := json.Unmarshal([]byte(command), &probe); err != nil || len(probe) < 2 || probe[0] != "/eventhub" {
		t.Fatalf("the probe is %s: %v", command, err)
	}
	if code, out = inContainer(t, []string{"EVENTHUB_OPS=" + hub.ops}, probe[1:]...); code != exitDone {
		t.Errorf("the probe of a hub that is ready ended with %d:\n%s", code, out)
	}
	hub.kill()
	if code, out = inContainer(t, []string{"EVENTHUB_OPS=" + hub.ops}, probe[1:]...); code == exitDone {
		t.Errorf("the probe of a hub that is gone succeeded:\n%s", out)
	}
}

// TestCompose: the hub of compose.yaml gets a token, keeps its events in a volume, is
// published on loopback alone, and has the time that an orderly stop may take.
func TestCompose(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "compose.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	type service struct {
		Image, Restart  string
		Environment     map[string]string
		Ports           []string
		StopGracePeriod string `yaml:"stop_grace_period"`
		Volumes         []string
	}
	var file struct {
		Services map[string]service
		Volumes  map[string]any
		Configs  map[string]struct{ Content string }
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	hub := file.Services["hub"]
	if !strings.HasPrefix(hub.Environment["EVENTHUB_AUTH_TOKEN"], "${EVENTHUB_TOKEN:?") {
		t.Errorf("the token is %q; without one Compose is to say so", hub.Environment["EVENTHUB_AUTH_TOKEN"])
	}
	if _, ok := file.Volumes["data"]; !ok || !slices.Equal(hub.Volumes, []string{"data:" + dockerfile(t, "VOLUME")}) {
		t.Errorf("the hub has the volumes %q, of %v", hub.Volumes, file.Volumes)
	}
	if hub.Restart != "unless-stopped" || hub.StopGracePeriod != "30s" {
		t.Errorf("restart is %q, stop_grace_period %q", hub.Restart, hub.StopGracePeriod)
	}
	var ports []string
	for name, s := range file.Services {
		for _, p := range s.Ports {
			if !strings.HasPrefix(p, "127.0.0.1:") {
				t.Errorf("%s is published as %s, where others can reach it", name, p)
			}
			ports = append(ports, p[strings.LastIndex(p, ":")+1:])
		}
	}
	for _, p := range strings.Fields(dockerfile(t, "EXPOSE")) {
		if !slices.Contains(ports, p) {
			t.Errorf("port %s is not published", p)
		}
	}
	var scrape struct {
		ScrapeConfigs []struct {
			Job    string                       `yaml:"job_name"`
			Static []struct{ Targets []string } `yaml:"static_configs"`
		} `yaml:"scrape_configs"`
	}
	if err := yaml.Unmarshal([]byte(file.Configs["prometheus"].Content), &scrape); err != nil {
		t.Fatal(err)
	}
	if len(scrape.ScrapeConfigs) != 1 || scrape.ScrapeConfigs[0].Job != "eventhub" || !slices.Equal(scrape.ScrapeConfigs[0].Static[0].Targets, []string{"hub:8082"}) {
		t.Errorf("Prometheus reads %+v", scrape)
	}
}
