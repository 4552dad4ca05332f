package main

import (
	"bytes"
	"context"
	"math/rand/v2"
	"strings"
)

// addOnce is a script as users of Redis have it: an event whose id is in the set is not added again.
const addOnce = `if redis.call('SADD',KEYS[2],ARGV[1])==0 then return false end return redis.call('XADD',KEYS[1],'*','id',ARGV[1],'key',ARGV[2],'d',ARGV[3])`

// Texts that deduplicate patches: as long as an id and a key.
const (
	idText  = "00000000-0000-0000-0000-000000000000"
	keyText = "key-00000000"
)

// deduplicate has the connections add by the script, with an id of its own for each event.
func (s *redisServer) deduplicate(ctx context.Context, all []*adder) error {
	c, err := dialRedis(ctx, s.addr)
	if err != nil {
		return err
	}
	defer c.conn.Close()
	reply, err := c.do("SCRIPT", "LOAD", addOnce)
	if err != nil {
		return err
	}
	_, sha, _ := strings.Cut(strings.TrimSpace(reply), "\r\n")
	for i, a := range all {
		random := rand.New(rand.NewPCG(2, uint64(i)))
		for at, c := range a.commands {
			payload := c[bytes.IndexByte(c, '"') : bytes.LastIndexByte(c, '"')+1]
			a.commands[at] = command("EVALSHA", sha, "2", stream, stream+"-ids", idText, keyText, string(payload))
		}
		id := bytes.Index(a.commands[0], []byte(idText))
		key := bytes.Index(a.commands[0], []byte(keyText))
		a.fresh = func(command []byte) {
			copyDigits(command[id:id+8], random.Uint64N(1e8))
			copyDigits(command[id+24:id+36], random.Uint64N(1e12))
			copyDigits(command[key+4:key+12], random.Uint64N(keys))
		}
	}
	return nil
}

// copyDigits writes a number with leading zeros.
func copyDigits(into []byte, n uint64) {
	for i := len(into) - 1; i >= 0; i-- {
		into[i], n = byte('0'+n%10), n/10
	}
}
