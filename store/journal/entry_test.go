package journal

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
)

func someEntry(t testing.TB) []byte {
	t.Helper()
	h := Header{Kind: KindData, Rest: 2, Layout: 6, Epoch: 7, Hub: "hub-1", Nonce: [16]byte{1, 2, 3}, Time: 1_764_000_000_123, Chain: 0xfedcba9876543210}
	entry, err := AppendEntry(nil, &h, []byte("the data"))
	if err != nil {
		t.Fatal(err)
	}
	return entry
}

// TestFormat: what is in a journal outlives programs, so its bytes are what they were.
func TestFormat(t *testing.T) {
	const want = "45484a01" + "2e33c657" + "01" + "05" + "00000006" + "00000002" + "00000008" + "0000000000000007" + "0000019ab697e87b" +
		"fedcba9876543210" + "01020300000000000000000000000000" + "6875622d31" + "7468652064617461"
	entry := someEntry(t)
	if got := hex.EncodeToString(entry); got != want {
		t.Errorf("the entry is\n%s; want\n%s", got, want)
	}
	if got := Hash(entry); got != 0x5693c489ca08e41a {
		t.Errorf("its hash is %#x", got)
	}
}

func TestEntryRoundTrip(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 1000 {
		h := Header{
			Kind: Kind(1 + random.IntN(4)), Layout: random.Uint32(), Epoch: 1 + random.Uint64N(1<<63), Time: int64(random.Uint64()), Chain: random.Uint64(),
			Hub: strings.Repeat("ü", 1+random.IntN(MaxHub/2)),
		}
		var data []byte
		if h.Kind == KindData {
			h.Rest = random.Uint32()
			data = bytes.Repeat([]byte{byte(random.Uint32())}, random.IntN(100))
		}
		binary.BigEndian.PutUint64(h.Nonce[:], random.Uint64())
		entry, err := AppendEntry([]byte("before"), &h, data)
		if err != nil {
			t.Fatalf("%+v: %v", h, err)
		}
		got, gotData, err := ParseEntry(entry[len("before"):])
		if err != nil || got != h || !bytes.Equal(gotData, data) {
			t.Fatalf("%+v with %d bytes came back as %+v with %d bytes, %v", h, len(data), got, len(gotData), err)
		}
	}
}

// TestForeignEntries: each cut, each flipped bit and each byte too much is seen.
func TestForeignEntries(t *testing.T) {
	entry := someEntry(t)
	check := func(what string, at int, bytes []byte) {
		t.Helper()
		if h, _, err := ParseEntry(bytes); !errors.Is(err, ErrForeign) {
			t.Errorf("%s %d: %+v, %v", what, at, h, err)
		}
	}
	for i := range entry {
		check("cut at", i, entry[:i])
		check("without the first", i+1, entry[i+1:])
		check("another byte at", i, append(append(bytes.Clone(entry[:i]), 7), entry[i:]...))
	}
	check("a byte after", len(entry), append(bytes.Clone(entry), 0))
	for bit := range len(entry) * 8 {
		flipped := bytes.Clone(entry)
		flipped[bit/8] ^= 1 << (bit % 8)
		check("flipped bit", bit, flipped)
	}
	// What has a right checksum is judged by what it says.
	for what, change := range map[string]func(b []byte){
		"kind 0":                 func(b []byte) { b[atKind] = 0 },
		"kind 5":                 func(b []byte) { b[atKind] = 5 },
		"no hub":                 func(b []byte) { b[atHub], b[atLength+3] = 0, 13 },
		"a hub that is too long": func(b []byte) { b[atHub] = 200 },
		"a lead with data":       func(b []byte) { b[atKind], b[atRest+3] = byte(KindLead), 0 },
		"a lead with pieces":     func(b []byte) { b[atKind] = byte(KindLead) },
		"epoch 0":                func(b []byte) { b[atEpoch+7] = 0 },
		"too much data":          func(b []byte) { b[atLength] = 0xff },
		"too little data":        func(b []byte) { b[atLength+3]-- },
	} {
		changed := bytes.Clone(entry)
		change(changed)
		binary.BigEndian.PutUint32(changed[atCheck:], checksum(changed))
		check(what, 0, changed)
	}
}

func TestEntriesThatAreRefused(t *testing.T) {
	for _, tt := range []struct {
		h    Header
		data string
		want string
	}{
		{Header{Kind: KindData, Hub: "a"}, "", "epoch is 0"},
		{Header{Kind: 9, Hub: "a", Epoch: 1}, "", "kind 9"},
		{Header{Kind: KindData, Epoch: 1}, "", "0 bytes"},
		{Header{Kind: KindData, Epoch: 1, Hub: strings.Repeat("a", 65)}, "", "65 bytes"},
		{Header{Kind: KindBeat, Epoch: 1, Hub: "a"}, "x", "a beat has data"},
	} {
		if b, err := AppendEntry(nil, &tt.h, []byte(tt.data)); err == nil || !strings.Contains(err.Error(), tt.want) || b != nil {
			t.Errorf("%+v: %v; want %q", tt.h, err, tt.want)
		}
	}
}

// FuzzParseEntry: what is taken for an entry is exactly what AppendEntry makes of what it says.
func FuzzParseEntry(f *testing.F) {
	f.Add(someEntry(f), false)
	f.Add(someEntry(f)[:70], true)
	f.Add([]byte("EHJ\x01"), true)
	f.Fuzz(func(t *testing.T, entry []byte, check bool) {
		if check && len(entry) >= atKind { // past the checksum
			entry = bytes.Clone(entry)
			binary.BigEndian.PutUint32(entry[atCheck:], checksum(entry))
		}
		h, data, err := ParseEntry(entry)
		if err != nil {
			if !errors.Is(err, ErrForeign) {
				t.Fatalf("the error is %v", err)
			}
			return
		}
		again, err := AppendEntry(nil, &h, data)
		if err != nil || !bytes.Equal(again, entry) {
			t.Fatalf("%+v with %d bytes is %x, %v; it was %x", h, len(data), again, err, entry)
		}
	})
}
