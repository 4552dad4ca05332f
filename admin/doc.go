// Package admin is the administration of a hub: what there is, how far groups are, what
// was published in the past, dead letters, delayed events, import and backup. A program
// that publishes and consumes needs none of it.
//
// The engine in process (package bus) satisfies all its interfaces. client.Admin, which
// asks a remote hub, satisfies most of them, and has ExportTo, ImportFrom and BackupTo for
// what is copied over a connection. The HTTP gateway and the views of package ops call
// these interfaces and do not know which of the two answers.
//
// Times in these types are epoch milliseconds, as in their JSON.
package admin

// MaxPage is the most entries that one listing returns.
const MaxPage = 1000
