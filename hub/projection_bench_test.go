package hub_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"eventhub"
	"eventhub/hub"
	"eventhub/internal/mongotest"
)

// atOnce is how many publishers there are.
const atOnce = 512

// BenchmarkOnMongo compares the events a second that a hub takes whose journal is in MongoDB, where many publishers share
// an entry, with one insert an event on the same server, one after the other and by as many at once; and says
// how many documents a second it writes, and how long they were behind.
//
//	go test ./hub -run '^$' -bench OnMongo -benchtime 20000x
func BenchmarkOnMongo(b *testing.B) {
	b.Run("insert an event", func(b *testing.B) { benchInserts(b, 1) })
	b.Run("insert an event, at once", func(b *testing.B) { benchInserts(b, 16) })
	for _, project := range []string{hub.ProjectOff, hub.ProjectOn} {
		b.Run("hub, project "+project, func(b *testing.B) { benchHub(b, project, 1) })
		b.Run("hub, batches of 100, project "+project, func(b *testing.B) { benchHub(b, project, 100) })
	}
}

var benchPayload = []byte(`{"pid":12345,"name":"stt","host":"dev","cpu_pct":12.3,"mem_mb":256}`)

func benchInserts(b *testing.B, at int) {
	db := mongotest.Database(b)
	journaled := true
	c := db.Collection("inserts", options.Collection().SetWriteConcern(&writeconcern.WriteConcern{W: writeconcern.WCMajority, Journal: &journaled}))
	each(b, at, func(n int) error {
		_, err := c.InsertOne(context.Background(), bson.D{{Key: "_id", Value: n}, {Key: "topic", Value: "t"}, {Key: "payload", Value: string(benchPayload)}})
		return err
	})
}

// each does b.N things, so many at once.
func each(b *testing.B, at int, do func(n int) error) {
	b.Helper()
	var all sync.WaitGroup
	numbers := make(chan int)
	for range at {
		all.Go(func() {
			for n := range numbers {
				if err := do(n); err != nil {
					b.Error(err)
				}
			}
		})
	}
	b.ResetTimer()
	for n := range b.N {
		numbers <- n
	}
	close(numbers)
	all.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
}

// benchHub publishes so many events with each publish.
func benchHub(b *testing.B, project string, batch int) {
	db := mongotest.Database(b)
	h, err := hub.Start(hub.Config{
		Store: b.TempDir(), WSAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0", OpsAddr: "127.0.0.1:0", Grace: 30 * time.Second, Project: project,
		Journal: strings.TrimSuffix(mongotest.URI(b), "/") + "/" + db.Name(), MemberID: "hub1",
	})
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := h.Stop(context.Background()); err != nil {
			b.Error(err)
		}
	}()
	for !isReady(h) {
		time.Sleep(10 * time.Millisecond)
	}
	began := time.Now()
	each(b, atOnce/batch+1, func(n int) error {
		events := make([]eventhub.Event, batch)
		for i := range events {
			events[i] = eventhub.Event{Topic: "t", Key: fmt.Sprint((n + i) % 100), Payload: benchPayload}
		}
		_, err := h.Bus().Publish(context.Background(), events...)
		return err
	})
	b.ReportMetric(float64(b.N*batch)/b.Elapsed().Seconds(), "events/s")
	if project == hub.ProjectOn {
		published := time.Since(began)
		awaitBenched(b, db, int64(b.N*batch))
		b.ReportMetric(float64(b.N*batch)/time.Since(began).Seconds(), "documents/s")
		b.ReportMetric((time.Since(began) - published).Seconds(), "s-behind")
	}
}

func awaitBenched(b *testing.B, db *mongo.Database, want int64) {
	b.Helper()
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		var at struct {
			Through int64 `bson:"through"`
		}
		err := db.Collection("eventhub_projection").FindOne(context.Background(), bson.D{{Key: "_id", Value: "t"}}).Decode(&at)
		if err == nil && at.Through >= want {
			return
		}
		if time.Now().After(end) {
			b.Fatalf("%d documents, %v; want %d", at.Through, err, want)
		}
	}
}

// isReady reports whether a hub serves.
func isReady(h *hub.Hub) bool {
	resp, err := http.Get("http://" + h.OpsAddr() + "/readyz")
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}
