package blob

import (
	"encoding/binary"
	"fmt"

	bolt "go.etcd.io/bbolt"
)

type state byte

const (
	stateWriting  state = 1 // some chunks may be there; invisible
	stateComplete state = 2
	stateDeleting state = 3 // some chunks may be gone; invisible
)

// metaVersion is the first byte of every description.
const metaVersion = 1

// meta describes a blob in the file.
type meta struct {
	state   state
	size    uint64 // bytes; of an unfinished upload, the announced bytes
	have    uint64 // bytes stored so far; equal to size when complete
	refs    uint64 // records that name this blob
	touched int64  // last write, nanoseconds since 1970
	sum     Sum    // of an unfinished upload, the announced hash
	hash    []byte // running state of the hash over have bytes, unfinished uploads only
}

const metaFixed = 1 + 1 + 4*8 + len(Sum{})

func (m *meta) encode() []byte {
	b := make([]byte, 0, metaFixed+len(m.hash))
	b = append(b, metaVersion, byte(m.state))
	b = binary.BigEndian.AppendUint64(b, m.size)
	b = binary.BigEndian.AppendUint64(b, m.have)
	b = binary.BigEndian.AppendUint64(b, m.refs)
	b = binary.BigEndian.AppendUint64(b, uint64(m.touched))
	b = append(b, m.sum[:]...)
	return append(b, m.hash...)
}

func decodeMeta(v []byte) (m meta, err error) {
	if len(v) < metaFixed {
		return m, fmt.Errorf("description of %d bytes, need %d: %w", len(v), metaFixed, ErrCorrupt)
	}
	if v[0] != metaVersion {
		return m, fmt.Errorf("description has version %d, this program reads %d: %w", v[0], metaVersion, ErrCorrupt)
	}
	m.state = state(v[1])
	if m.state < stateWriting || m.state > stateDeleting {
		return m, fmt.Errorf("description has state %d: %w", v[1], ErrCorrupt)
	}
	m.size = binary.BigEndian.Uint64(v[2:])
	m.have = binary.BigEndian.Uint64(v[10:])
	m.refs = binary.BigEndian.Uint64(v[18:])
	m.touched = int64(binary.BigEndian.Uint64(v[26:]))
	copy(m.sum[:], v[34:])
	m.hash = append([]byte(nil), v[metaFixed:]...)
	if m.size > maxSize || m.have > m.size && m.state == stateComplete || m.have > maxSize {
		return m, fmt.Errorf("description has size %d, stored %d: %w", m.size, m.have, ErrCorrupt)
	}
	return m, nil
}

// maxSize is what chunk numbers of 32 bits can address.
const maxSize = ChunkSize << 32

// readMeta returns the description of a blob in any state.
func readMeta(b *bolt.Bucket, id ID) (meta, error) {
	v := b.Get(idKey(id))
	if v == nil {
		return meta{}, ErrNotFound
	}
	return decodeMeta(v)
}

func decodeEntry(k, v []byte) (ID, meta, error) {
	if len(k) != 8 {
		return 0, meta{}, fmt.Errorf("blob key %x: %w", k, ErrCorrupt)
	}
	id := ID(binary.BigEndian.Uint64(k))
	m, err := decodeMeta(v)
	if err != nil {
		return 0, m, fmt.Errorf("blob %d: %w", id, err)
	}
	return id, m, nil
}

func idKey(id ID) []byte { return binary.BigEndian.AppendUint64(nil, uint64(id)) }

func chunkKey(id ID, n uint32) []byte {
	return binary.BigEndian.AppendUint32(idKey(id), n)
}

// putMeta writes the description and keeps the bucket's sequence at or above the
// id, so that ids of deleted blobs stay unused after a restart.
func putMeta(tx *bolt.Tx, id ID, m meta) error {
	b := tx.Bucket(metaBucket)
	if b.Sequence() < uint64(id) {
		if err := b.SetSequence(uint64(id)); err != nil {
			return err
		}
	}
	return b.Put(idKey(id), m.encode())
}

// chunks is the number of chunks of a blob of size bytes.
func chunks(size uint64) uint32 { return uint32((size + ChunkSize - 1) / ChunkSize) }

// chunkLen is the length of chunk n of a blob of size bytes.
func chunkLen(size uint64, n uint32) int {
	return int(min(size-uint64(n)*ChunkSize, ChunkSize))
}
