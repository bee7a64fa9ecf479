// Package store is the bbolt file: record types, typed buckets, migrations, check, backup.
//
// One file holds everything a user could lose: models, sessions, runs,
// checkpoints, samplers and futures as records, and the bytes of files and tensors
// as blobs (package store/blob). [Open] takes the file exclusively.
//
// A record and the references it holds on blobs change in one transaction: a
// listed checkpoint always has its bytes, and a replaced or deleted one gives them
// up, to be collected by [DB.Blobs] Collect. The writer of the bytes holds them
// until the record is in and then releases them:
//
//	infos, err := db.Blobs().PutAll(ctx, len(tensors), bytesOf)
//	err = db.PutCheckpoint(c) // refers to infos[i].ID
//	db.Blobs().Release(ids...)
//
// Every value returned is a copy; transactions are short and never wait for a
// caller. Each write commits with a sync to disk, so what comes often in small
// pieces is written in batches: [DB.PutFutures], [DB.TouchSessions].
package store
