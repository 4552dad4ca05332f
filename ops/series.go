package ops

import (
	"math"

	"github.com/prometheus/client_golang/prometheus"

	"eventhub/internal/measure"
)

// series is one counter or gauge of a row.
type series[R any] struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*R) float64
}

// histogram is one histogram of a row.
type histogram[R any] struct {
	desc  *prometheus.Desc
	value func(*R) *measure.Histogram
}

var (
	topicLabels = []string{"topic"}
	groupLabels = []string{"topic", "group"}
)

// The names that the seeds gave have no prefix; whatever came later is under
// eventhub_.

var topicSeries = []series[measure.Topic]{
	counter("events_published_total", "Events committed.", topicLabels,
		func(t *measure.Topic) uint64 { return t.Events }),
	counter("eventhub_published_bytes_total", "Bytes of the committed events, as stored.", topicLabels,
		func(t *measure.Topic) uint64 { return t.Bytes }),
	counter("eventhub_duplicates_total", "Publishes that found their id in the topic and added nothing.", topicLabels,
		func(t *measure.Topic) uint64 { return t.Duplicates }),
	counter("eventhub_retention_removed_events_total", "Events removed because the settings of their topic do not keep them.", topicLabels,
		func(t *measure.Topic) uint64 { return t.Removed }),
	counter("eventhub_retention_removed_bytes_total", "Bytes of the records of these events.", topicLabels,
		func(t *measure.Topic) uint64 { return t.RemovedBytes }),
	counter("eventhub_compaction_removed_events_total", "Events removed by compaction: a newer one of their key was there, or they had ended it.", topicLabels,
		func(t *measure.Topic) uint64 { return t.Compacted }),
	counter("eventhub_compaction_removed_bytes_total", "Bytes of the records that compaction has removed.", topicLabels,
		func(t *measure.Topic) uint64 { return t.CompactedBytes }),
	counter("eventhub_groups_ended_total", "Groups that have ended because nobody had used them for as long as the settings of their topic allow.", topicLabels,
		func(t *measure.Topic) uint64 { return t.GroupsEnded }),
	gauge("eventhub_topic_horizon", "The first offset that the topic keeps; 0 of _other.", topicLabels,
		func(t *measure.Topic) float64 { return float64(t.Horizon) }),
}

var groupSeries = []series[groupRow]{
	counter("events_delivered_total", "Attempts handed to a member; without a group: events handed to live tails.", groupLabels,
		func(g *groupRow) uint64 { return g.Delivered }),
	counter("eventhub_events_redelivered_total", "Attempts handed to a member that were not an event's first.", groupLabels,
		func(g *groupRow) uint64 { return g.Redelivered }),
	counter("events_acked_total", "Events acked.", groupLabels,
		func(g *groupRow) uint64 { return g.Acked }),
	counter("events_nacked_total", "Deliveries nacked.", groupLabels,
		func(g *groupRow) uint64 { return g.Nacked }),
	counter("eventhub_leases_expired_total", "Leases that ran out without an answer.", groupLabels,
		func(g *groupRow) uint64 { return g.Expired }),
	counter("eventhub_events_dead_lettered_total", "Events that became dead letters.", groupLabels,
		func(g *groupRow) uint64 { return g.DeadLettered }),
	counter("eventhub_gaps_total", "Times that the group came to events which were removed before it was done with them, by retention, by hand, or by a compaction that had gone past it.", groupLabels,
		func(g *groupRow) uint64 { return g.Gaps }),
	counter("eventhub_gap_offsets_total", "Offsets that were removed before the group was done with them; not all of them need have had events for it.", groupLabels,
		func(g *groupRow) uint64 { return g.GapOffsets }),
	gauge("events_inflight", "Events leased to members.", groupLabels, func(g *groupRow) float64 {
		total := 0
		for _, n := range g.InFlight {
			total += n
		}
		return float64(total)
	}),
	gauge("ws_inflight", "Events leased to members that are connected over WebSocket.", groupLabels,
		func(g *groupRow) float64 { return float64(g.InFlight["ws"]) }),
	gauge("eventhub_group_lag_events", "Events that are not done: above the cursor and not acked. Of those that were not read yet, offsets from the topic's horizon on.", groupLabels,
		func(g *groupRow) float64 { return float64(g.Lag) }),
	gauge("eventhub_group_waiting_events", "Events that wait for another attempt.", groupLabels,
		func(g *groupRow) float64 { return float64(g.Waiting) }),
	gauge("eventhub_group_held_events", "Events that are held back until an earlier one of their key is done.", groupLabels,
		func(g *groupRow) float64 { return float64(g.Held) }),
	gauge("eventhub_group_deliverable_events", "Events that are not done, of groups that have members and are not paused.", groupLabels,
		func(g *groupRow) float64 { return float64(g.deliverable) }),
	gauge("eventhub_group_unattended_events", "Events that are not done, of groups without members.", groupLabels,
		func(g *groupRow) float64 { return float64(g.unattended) }),
	gauge("eventhub_group_paused", "1 while the group is paused and nothing is delivered to it, else 0; of _other: how many are.", groupLabels,
		func(g *groupRow) float64 { return float64(g.paused) }),
	gauge("eventhub_dead_letters_open", "Dead letters of the group that nothing was done about, also of a group that was deleted.", groupLabels,
		func(g *groupRow) float64 { return float64(g.OpenLetters) }),
	gauge("eventhub_dead_letters_redriven", "Dead letters of the group whose events were given back to it and are not done.", groupLabels,
		func(g *groupRow) float64 { return float64(g.Redriven) }),
	gauge("eventhub_group_members", "Members of the group.", groupLabels,
		func(g *groupRow) float64 { return float64(g.Members) }),
}

var groupHistograms = []histogram[groupRow]{
	{desc("subscribe_poll_duration_ms", "One turn of the group in milliseconds: plan, read, lease, hand over.", groupLabels),
		func(g *groupRow) *measure.Histogram { return &g.Poll }},
	{desc("delivery_handler_duration_ms", "From handing an event over to its ack, in milliseconds.", groupLabels),
		func(g *groupRow) *measure.Histogram { return &g.Handler }},
	{desc("delivery_latency_ms", "From an event's commit to its ack, in milliseconds.", groupLabels),
		func(g *groupRow) *measure.Histogram { return &g.Latency }},
}

var engineSeries = []series[measure.Engine]{
	counter("eventhub_filter_failed_total", "Events that did not pass because a filter could not be evaluated on them.", nil,
		func(e *measure.Engine) uint64 { return e.FilterFailed }),
	counter("eventhub_filter_too_costly_total", "Of these, events on which a filter costs more than is allowed.", nil,
		func(e *measure.Engine) uint64 { return e.FilterTooCostly }),
	gauge("eventhub_commit_waiting_seconds", "How long the store has ended no commit while one is under way, 0 without one.", nil,
		func(e *measure.Engine) float64 { return e.CommitWaiting.Seconds() }),
	gauge("eventhub_queued_bytes", "Bytes of the records that wait for the committer.", nil,
		func(e *measure.Engine) float64 { return float64(e.QueuedBytes) }),
	gauge("eventhub_cached_bytes", "Bytes of the records in the tail cache.", nil,
		func(e *measure.Engine) float64 { return float64(e.CachedBytes) }),
	gauge("eventhub_groups_bytes", "Memory, about, of events of groups that are not done: above an eighth of eventhub_memory_limit_bytes, if there is a limit, a group that has 1,000 of them reads no more.", nil,
		func(e *measure.Engine) float64 { return float64(e.GroupBytes) }),
	gauge("eventhub_last_commit_timestamp_seconds", "When the last commit of the store ended, in seconds since 1970; 0 before the first since the start.", nil,
		func(e *measure.Engine) float64 {
			if e.LastCommit.IsZero() {
				return 0
			}
			return float64(e.LastCommit.UnixMilli()) / 1000
		}),
	gauge("eventhub_store_full_seconds", "How long it takes until publishes are refused for want of room, if that goes on to shrink as in the last hours; +Inf where it does not, or in the first ten minutes.", nil,
		func(e *measure.Engine) float64 {
			if e.FullIn < 0 {
				return math.Inf(1)
			}
			return e.FullIn.Seconds()
		}),
	counter("eventhub_retention_rounds_total", "How often topics were looked at for events that their settings do not keep.", nil,
		func(e *measure.Engine) uint64 { return e.RetentionRounds }),
	gauge("eventhub_retention_clock_held_seconds", "By how much the wall clock is ahead of the time that retention by age goes by; 0 as a rule.", nil,
		func(e *measure.Engine) float64 { return e.AgesHeld.Seconds() }),
	gauge("eventhub_key_index_left_offsets", "Offsets that the indexes by key have before them that are being built; 0 as a rule.", nil,
		func(e *measure.Engine) float64 { return float64(e.Indexing) }),
	gauge("eventhub_producers", "Producers of numbered publishes that the hub knows; at most max_producers.", nil,
		func(e *measure.Engine) float64 { return float64(e.Producers) }),
	gauge("eventhub_producers_used", "Of these, those that a connection uses.", nil,
		func(e *measure.Engine) float64 { return float64(e.ProducersUsed) }),
	gauge("eventhub_maintenance", "1 while the hub removes by itself what settings do not keep, 0 with --maintenance=off.", nil,
		func(e *measure.Engine) float64 { return oneIf(!e.NoMaintenance) }),
}

// storeSeries are those of the engine that a standby has too: its disk fills as well, and ends it.
var storeSeries = []series[measure.Engine]{
	gauge("eventhub_store_free_bytes", "Free bytes of the file system that the store is on; 0 of a store in memory.", nil,
		func(e *measure.Engine) float64 { return float64(e.FreeBytes) }),
	gauge("eventhub_store_needed_bytes", "Bytes that have to be free there: with less, publishes are refused, of a standby those that come when it leads; 0 of a store in memory.", nil,
		func(e *measure.Engine) float64 { return float64(e.NeededBytes) }),
	gauge("eventhub_store_size_bytes", "Size of the store: on disk, or in memory where it keeps nothing else.", nil,
		func(e *measure.Engine) float64 { return float64(e.StoreBytes) }),
}

var engineHistograms = []histogram[measure.Engine]{
	{desc("eventhub_commit_duration_seconds", "One commit of the store, fsync included.", nil),
		func(e *measure.Engine) *measure.Histogram { return &e.CommitSeconds }},
	{desc("eventhub_commit_events", "Events in one commit of the store.", nil),
		func(e *measure.Engine) *measure.Histogram { return &e.CommitEvents }},
}

var hubSeries = []series[snapshot]{
	gauge("eventhub_ready", "1 when every check of /readyz is well, else 0.", nil,
		func(s *snapshot) float64 { return oneIf(s.ready) }),
	gauge("eventhub_connections", "WebSocket connections open.", nil,
		func(s *snapshot) float64 { return float64(s.gateway.Connections) }),
	counter("eventhub_connections_opened_total", "WebSocket connections that were opened.", nil,
		func(s *snapshot) uint64 { return s.gateway.Opened }),
	counter("eventhub_connections_refused_total", "WebSocket connections refused for lack of room, or while stopping.", nil,
		func(s *snapshot) uint64 { return s.gateway.Refused }),
	gauge("eventhub_connections_unauthenticated", "Connections of all listeners that have shown no right yet; at most max_unauthenticated.", nil,
		func(s *snapshot) float64 { return float64(s.strangers) }),
	counter("eventhub_connections_evicted_total", "Of these, those that were closed to make room for others.", nil,
		func(s *snapshot) uint64 { return s.evicted }),
	gauge("eventhub_memory_limit_bytes", "Memory that the hub is to stay below (memory_limit); 0: there is no limit.", nil,
		func(s *snapshot) float64 { return float64(s.limit) }),
	gauge("eventhub_memory_used_bytes", "Of these, what the last garbage collection found in use, and stacks: from 80 % on new connections are refused, from 90 % on publishes.", nil,
		func(s *snapshot) float64 { return float64(s.used) }),
	gauge("eventhub_publish_load_percent", "What waits to be published, of what the store takes within max_publish_wait: from 80 on new connections are refused, from 100 on publishes.", nil,
		func(s *snapshot) float64 { return float64(s.load) }),
	counter("eventhub_received_bytes_total", "Bytes received over WebSocket.", nil,
		func(s *snapshot) uint64 { return s.gateway.BytesReceived }),
	counter("eventhub_sent_bytes_total", "Bytes sent over WebSocket.", nil,
		func(s *snapshot) uint64 { return s.gateway.BytesSent }),
	counter("eventhub_audit_lost_total", "Entries of the audit that the log has and system.audit does not, because it could not be written.", nil,
		func(s *snapshot) uint64 { return s.auditLost }),
	gauge("eventhub_subscriptions", "Subscriptions open over WebSocket.", nil,
		func(s *snapshot) float64 { return float64(s.gateway.Subscriptions) }),
}

// clusterSeries are those of a hub that shares a journal, also while it is a standby.
var clusterSeries = []series[measure.Cluster]{
	gauge("eventhub_member_active", "1 while this hub leads the journal that it shares, 0 while it is a standby. Only a hub that shares one has this and what follows.", nil,
		func(c *measure.Cluster) float64 { return oneIf(c.Leads) }),
	gauge("eventhub_member_epoch", "Epoch of the last entry that this hub has: each hub that takes the lead begins one.", nil,
		func(c *measure.Cluster) float64 { return float64(c.Epoch) }),
	gauge("eventhub_journal_position", "Place of the last entry that this hub has.", nil,
		func(c *measure.Cluster) float64 { return float64(c.Position) }),
	gauge("eventhub_journal_last", "Last place of the journal, as far as this hub has seen.", nil,
		func(c *measure.Cluster) float64 { return float64(c.Last) }),
	gauge("eventhub_journal_behind_entries", "Entries of the journal that this hub does not have yet.", nil,
		func(c *measure.Cluster) float64 { return float64(c.BehindEntries(c.Position)) }),
	gauge("eventhub_journal_behind_seconds", "For how long a standby has not had all entries; 0 where it has.", nil,
		func(c *measure.Cluster) float64 { return c.Behind.Seconds() }),
	gauge("eventhub_journal_silent_seconds", "For how long the journal has not answered this hub; 0 as a rule.", nil,
		func(c *measure.Cluster) float64 { return c.Silent.Seconds() }),
	gauge("eventhub_journal_full_seconds", "For how long the journal has answered this hub that it is full, and has taken nothing; 0 as a rule.", nil,
		func(c *measure.Cluster) float64 { return c.Full.Seconds() }),
	gauge("eventhub_journal_used_bytes", "Bytes that the journal has.", nil,
		func(c *measure.Cluster) float64 { return float64(c.Used) }),
	gauge("eventhub_journal_most_bytes", "Bytes that the journal may have; 0 where it has no limit.", nil,
		func(c *measure.Cluster) float64 { return float64(c.Most) }),
	gauge("eventhub_projection_behind_entries", "Entries of the journal that the documents in MongoDB do not have yet; 0 in a hub that writes none, as those of the next three.", nil,
		func(c *measure.Cluster) float64 { return float64(c.Projection.Entries) }),
	gauge("eventhub_projection_behind_seconds", "For how long the oldest of them has waited.", nil,
		func(c *measure.Cluster) float64 { return c.Projection.Lag.Seconds() }),
	counter("eventhub_projection_events_total", "Events that were written as documents.", nil,
		func(c *measure.Cluster) uint64 { return c.Projection.Events }),
	counter("eventhub_projection_errors_total", "Attempts to write documents that failed, and are tried again.", nil,
		func(c *measure.Cluster) uint64 { return c.Projection.Errors }),
	counter("eventhub_failovers_total", "How often this process took the lead.", nil,
		func(c *measure.Cluster) uint64 { return c.Failovers }),
}

var clusterHistograms = []histogram[measure.Cluster]{
	{desc("eventhub_journal_append_seconds", "One entry of the hub that leads, until the journal has it.", nil),
		func(c *measure.Cluster) *measure.Histogram { return &c.AppendSeconds }},
}

// patternLabel is that of the topics which a setting is for, "" for one that is of none.
const patternLabel = "pattern"

// Metrics whose labels are counted themselves.
var (
	closedDesc = desc("eventhub_connections_closed_total",
		"WebSocket connections that ended, by close code: none without one, 3000 and 4000 for all that programs choose there.", []string{"code"})
	errorsDesc   = desc("eventhub_errors_total", "ERR frames sent, by their code.", []string{"code"})
	requestsDesc = desc("eventhub_http_requests_total", "Requests that the HTTP API answered, by route and status.", []string{"route", "status"})
	publishDesc  = desc("eventhub_publish_refused_total", "Publications, imports and requeues that the engine refused, by error code.", []string{"code"})
	refusedDesc  = desc("eventhub_auth_refused_total", "Requests, and frames of WebSockets, that were refused for want of a right token, by error code.", []string{"transport", "reason"})
	staleDesc    = desc("eventhub_setting_stale", "1 while what a setting names can not be read again, and what it had before counts; else 0.", []string{"setting"})
	reloadDesc   = desc("eventhub_setting_reload_failures_total", "How often what a setting names could not be read again.", []string{"setting"})
	expiresDesc  = desc("eventhub_tls_certificate_expires_timestamp_seconds", "When the certificate of the listeners is not valid any more, in seconds since 1970.", nil)
	limitDesc    = desc("eventhub_limit_events_per_second", "Limits of publishes, in events a second: of each connection, each principal, and each topic that an entry of the file of limits matches.", []string{"limit", patternLabel})
	boundDesc    = desc("eventhub_limit_connections", "Limits of WebSocket connections and event streams: of all together, of one address and of one principal.", []string{"limit"})
	limitedDesc  = desc("eventhub_limit_refused_total", "Publications, WebSocket connections and event streams that a limit refused.", []string{"limit", patternLabel})
	buildDesc    = desc("eventhub_build_info", "Always 1; the labels say what runs.", []string{"version", "goversion"})
)

func desc(name, help string, labels []string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

func counter[R any](name, help string, labels []string, value func(*R) uint64) series[R] {
	return series[R]{desc(name, help, labels), prometheus.CounterValue, func(row *R) float64 { return float64(value(row)) }}
}

func gauge[R any](name, help string, labels []string, value func(*R) float64) series[R] {
	return series[R]{desc(name, help, labels), prometheus.GaugeValue, value}
}

func oneIf(holds bool) float64 {
	if holds {
		return 1
	}
	return 0
}

func descsOf[R any](all []series[R]) []*prometheus.Desc {
	descs := make([]*prometheus.Desc, len(all))
	for i, s := range all {
		descs[i] = s.desc
	}
	return descs
}

func histogramDescs[R any](all []histogram[R]) []*prometheus.Desc {
	descs := make([]*prometheus.Desc, len(all))
	for i, h := range all {
		descs[i] = h.desc
	}
	return descs
}

// emit sends every series of a row.
func emit[R any](out chan<- prometheus.Metric, all []series[R], row *R, labels ...string) {
	for _, s := range all {
		out <- prometheus.MustNewConstMetric(s.desc, s.kind, s.value(row), labels...)
	}
}

// emitHistograms sends every histogram of a row.
func emitHistograms[R any](out chan<- prometheus.Metric, all []histogram[R], row *R, labels ...string) {
	for _, h := range all {
		v := h.value(row)
		out <- prometheus.MustNewConstHistogram(h.desc, v.Count(), v.Sum(), v.Buckets(), labels...)
	}
}
