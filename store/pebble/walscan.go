package pebble

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Pebble's log is made of blocks of 32 KiB, and these of chunks: a checksum, a length, a
// type, the number of the log, in the newer types how far the log was synced, and the
// payload (package record). What is left of a block is zero. A log that was ended has a
// trailer, the head of a chunk with nothing but the number of the next log.
const (
	walBlock    = 32 << 10
	chunkHead   = 7  // checksum, length, type
	chunkNumber = 11 // with the log's number
	chunkSynced = 19 // with how far it was synced

	chunkWithNumber = 5 // the lowest type of four
	chunkWithSynced = 9 // the lowest type of four
	chunkTypes      = 13

	// remnant is how many bytes after the end of a log are searched for what was one of its
	// chunks.
	remnant = 4 << 20
)

// logNumber returns the number of a log, false where name is none.
func logNumber(name string) (uint64, bool) {
	digits, ok := strings.CutSuffix(name, ".log")
	if !ok {
		return 0, false
	}
	num, err := strconv.ParseUint(digits, 10, 64)
	return num, err == nil
}

func isManifest(name string) bool { return strings.HasPrefix(name, "MANIFEST-") }

// logExtent is what a log has.
type logExtent struct {
	chunks int   // that are whole, from its beginning
	whole  int64 // bytes that these have, padding and trailer included
	// broken: after them is something that was, or looks as if it was, a chunk of this log.
	broken bool
}

// measureLog reads a log until its chunks end, or have so many bytes; where they end before
// that, also what follows the chunks.
func measureLog(fsys vfs.FS, path string, num uint64, enough int64) (x logExtent, err error) {
	f, err := fsys.Open(path, vfs.SequentialReadsOption)
	if err != nil {
		return x, err
	}
	defer f.Close() // it is only read
	block := make([]byte, walBlock)
	ended, passed := false, 0
	for x.whole < enough && passed < remnant && !x.broken {
		n, err := io.ReadFull(f, block)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
			return x, err
		}
		if ended {
			passed += n
			size, _ := chunkAt(block[:n], num)
			x.broken = size > 0
			continue
		}
		chunks, used, trailer := chunksOf(block[:n], num)
		x.chunks += chunks
		x.whole += int64(used)
		if trailer {
			break
		}
		if used < n {
			ended, x.broken = true, isRemnant(block[used:n], num)
		}
	}
	return x, nil
}

// chunksOf counts the whole chunks at the beginning of a block, and their bytes.
func chunksOf(block []byte, num uint64) (chunks, used int, trailer bool) {
	for used < len(block) {
		n, end := chunkAt(block[used:], num)
		if n == 0 {
			if isPadding(block[used:]) && len(block) == walBlock {
				used = len(block)
			}
			return chunks, used, false
		}
		if used += n; end {
			return chunks, used, true
		}
		chunks++
	}
	return chunks, used, false
}

// chunkAt returns the size of the chunk that b begins with, 0 if it is none of this log.
func chunkAt(b []byte, num uint64) (size int, trailer bool) {
	if len(b) < chunkNumber {
		return 0, false
	}
	sum, length, kind := binary.LittleEndian.Uint32(b), int(binary.LittleEndian.Uint16(b[4:])), b[6]
	of := binary.LittleEndian.Uint32(b[chunkHead:])
	if sum == 0 && length == 0 && kind == chunkWithNumber && of == uint32(num)+1 {
		return chunkNumber, true
	}
	head := chunkNumber
	if kind >= chunkWithSynced {
		head = chunkSynced
	}
	if kind < chunkWithNumber || kind >= chunkTypes || of != uint32(num) || head+length > len(b) {
		return 0, false
	}
	crc := crc32.Checksum(b[6:head+length], castagnoli)
	if crc>>15|crc<<17 != sum-0xa282ead8 { // as Pebble turns it
		return 0, false
	}
	return head + length, false
}

// isPadding reports whether rest is the end of a block without room for a chunk.
func isPadding(rest []byte) bool {
	if len(rest) >= chunkSynced {
		return false
	}
	for _, c := range rest {
		if c != 0 {
			return false
		}
	}
	return true
}

// isRemnant reports whether rest begins with the head of a chunk of this log, or has a whole
// one. A log that was another one before has old bytes there, whose head would be right
// by chance only.
func isRemnant(rest []byte, num uint64) bool {
	for at := range rest {
		if len(rest)-at < chunkNumber {
			return false
		}
		if kind := rest[at+6]; kind < chunkWithNumber || kind >= chunkTypes {
			continue
		}
		if binary.LittleEndian.Uint32(rest[at+chunkHead:]) != uint32(num) {
			continue
		}
		if size, _ := chunkAt(rest[at:], num); at == 0 || size > 0 {
			return true
		}
	}
	return false
}
