// Command ferretdb is a server with the wire protocol of MongoDB for tests. It is FerretDB,
// with its data in SQLite files or in a database of PostgreSQL, and a module of its own, so that FerretDB is no dependency
// of the product.
//
// It prints the address of its listener as a mongodb:// URI in one line, and ends when its
// standard input ends, so that it does not outlive the test that started it.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/FerretDB/FerretDB/ferretdb"
)

func main() {
	dir := flag.String("dir", "", "directory of the data")
	postgres := flag.String("postgres", "", "URL of a database for the data, in place of files")
	listen := flag.String("listen", "127.0.0.1:0", "address to listen on")
	flag.Parse()
	if err := run(*dir, *postgres, *listen); err != nil {
		fmt.Fprintln(os.Stderr, "ferretdb:", err)
		os.Exit(1)
	}
}

func run(dir, postgres, listen string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	config := &ferretdb.Config{
		Listener:  ferretdb.ListenerConfig{TCP: listen},
		Logger:    slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
		Handler:   "sqlite",
		SQLiteURL: "file:" + dir + "/",
	}
	if postgres != "" {
		config.Handler, config.PostgreSQLURL = "postgresql", postgres
	}
	server, err := ferretdb.New(config)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	go fmt.Println(server.MongoDBURI()) // waits until Run listens
	return server.Run(ctx)
}
