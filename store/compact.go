package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"smolgym/store/blob"

	bolt "go.etcd.io/bbolt"
)

// Usage is how the file's bytes are spent.
type Usage struct {
	File  int64 // length of the file
	Free  int64 // of it, pages that later writes use again
	Blobs blob.Usage
}

// Usage measures the store.
func (db *DB) Usage() (u Usage, err error) {
	info, err := os.Stat(db.path)
	if err != nil {
		return u, fmt.Errorf("measure store: %w", err)
	}
	u.File = info.Size()
	stats := db.bolt.Stats()
	u.Free = int64(stats.FreePageN+stats.PendingPageN) * int64(db.bolt.Info().PageSize)
	if u.Blobs, err = db.blobs.Usage(); err != nil {
		return u, fmt.Errorf("measure store: %w", err)
	}
	return u, nil
}

// copyBytes is how much of the records one writing transaction of Compact takes.
const copyBytes = 32 << 20

// Compact writes a consistent copy of the store to a new file without free pages,
// while the store stays in use: blobs go one by one in short transactions with
// collection stopped, then records and late blobs in one. Unfinished uploads and
// unreferenced blobs stay behind. The file appears at dst when it is whole.
func (db *DB) Compact(ctx context.Context, dst string) error {
	if err := db.compact(ctx, dst); err != nil {
		return fmt.Errorf("compact store %s to %s: %w", db.path, dst, err)
	}
	return nil
}

func (db *DB) compact(ctx context.Context, dst string) error {
	if _, err := os.Lstat(dst); err == nil {
		return fmt.Errorf("%w; choose another path", os.ErrExist)
	} else if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	tmp := dst + ".new"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	defer db.blobs.Pin()()
	if err := db.copyTo(ctx, tmp); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	if err := os.Rename(tmp, dst); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	return syncDir(filepath.Dir(dst))
}

func (db *DB) copyTo(ctx context.Context, path string) (err error) {
	out, err := bolt.Open(path, 0o600, &bolt.Options{
		Timeout: lockWait, PageSize: pageSize, InitialMmapSize: mapSize, FreelistType: bolt.FreelistMapType,
		NoSync: true, // synced once, at the end
	})
	if err != nil {
		return err
	}
	out.AllocSize = growBytes
	size := int64(0)
	defer func() {
		err = errors.Join(err, out.Close())
		if err == nil {
			err = trim(path, size)
		}
	}()
	copier, err := db.blobs.NewCopier(out)
	if err != nil {
		return err
	}
	// Blobs that come while others are copied make the second round, then the third.
	for range 3 {
		n, err := copier.Chunks(ctx)
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
	}
	err = db.view(func(tx *bolt.Tx) error {
		if err := copier.Finish(tx); err != nil {
			return err
		}
		for _, name := range append(bucketNames(), string(metaBucket)) {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := copyBucket(out, tx, []byte(name)); err != nil {
				return fmt.Errorf("copy bucket %s: %w", name, err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return out.View(func(tx *bolt.Tx) error {
		size = tx.Size()
		return nil
	})
}

// trim cuts off the room for growth behind the last used page, and syncs.
func trim(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(size), f.Sync(), f.Close())
}

// copyBucket copies one bucket of records, a part in each writing transaction.
func copyBucket(out *bolt.DB, tx *bolt.Tx, name []byte) error {
	c := tx.Bucket(name).Cursor()
	k, v := c.First()
	for first := true; first || k != nil; first = false {
		err := out.Update(func(dst *bolt.Tx) error {
			b, err := dst.CreateBucketIfNotExists(name)
			if err != nil {
				return err
			}
			b.FillPercent = 0.9 // in order, with some room for later changes
			for size := 0; k != nil && size < copyBytes; k, v = c.Next() {
				if err := b.Put(k, v); err != nil {
					return err
				}
				size += len(k) + len(v)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
