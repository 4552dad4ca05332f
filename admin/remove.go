package admin

// AuditTopic is where the hub notes what was erased, by whom and when: events whose payload is
// an ErasedMark. The first one creates it. It keeps the newest ones, and nobody can remove
// events of it.
const AuditTopic = "system.audit"
