package store

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"smolgym/store/blob"

	bolt "go.etcd.io/bbolt"
)

func TestRecordsSurvive(t *testing.T) {
	c := newClock()
	path := filepath.Join(t.TempDir(), "smolgym.db")
	opt := Options{Now: c.Now, Blob: smallBlobs}
	db, err := Open(path, opt)
	must(t, err)
	config := putBlob(t, db, []byte(`{"model_type":"llama"}`))
	weights := putBlob(t, db, content(1, 3*blob.ChunkSize+5))
	expires := c.now.Add(time.Hour)
	model := Model{Name: "org/name:mine", Aliases: []string{"org/name"}, Created: c.now, Family: "llama", Parameters: 1 << 40, DType: "bf16", Context: 512,
		Files: []File{{"config.json", config.Size, config.Sum, config.ID}, {"sub/model.safetensors", weights.Size, weights.Sum, weights.ID}},
		Meta:  map[string]string{"a": "b"}}
	session := Session{ID: "s", Created: c.now, LastSeen: c.now, Tags: []string{"x"}, UserMetadata: map[string]string{"k": "v"}, ProjectID: "p",
		DisplayName: "d", SDKVersion: "0.38.0", Finished: &Finish{"success", "done", c.now}, NextModelSeq: 3}
	adapter := Adapter{Rank: 8, Alpha: 32, Seed: -7, TrainAttn: true, TrainMLP: true, TrainUnembed: true}
	run := Run{ID: "s:train:0", SessionID: "s", BaseModel: model.Name, Adapter: adapter, Created: c.now, LastRequest: c.now, LastSeq: 1 << 60,
		UserMetadata: map[string]string{"k": "v"}, Corrupted: true, FromPath: "tinker://a/weights/b", Numerics: "avx2 fp32 1"}
	point := Checkpoint{CheckpointKey: key(run.ID, KindWeights, "000010"), Adapter: adapter, Created: c.now, Expires: &expires, Public: true,
		UserMetadata: map[string]string{"k": "v"}, BaseModel: model.Name, Step: 10, SizeBytes: 99, Numerics: "n",
		Tensors:   []Tensor{{"w", "f32", []int64{2, 3}, weights.ID, 8, 24}},
		Optimizer: []Tensor{{"m", "f32", []int64{}, weights.ID, 0, 4}}}
	sampler := Sampler{"s:sample:0", "s", 0, model.Name, point.Path(), run.ID, true, c.now, 3, []Span{{1, 1e9, 1e9 + 1000}}}
	future := Future{ID: "f", Kind: "optim_step", RunID: run.ID, Seq: 4, BodyHash: "h", State: FutureDone, ContentType: "application/json",
		Result: []byte{0, 1, 255}, Created: c.now, Done: c.now}
	must(t, db.AddModel(model))
	must(t, db.AddSession(session))
	must(t, db.AddRun(run))
	must(t, db.AddCheckpoint(point))
	must(t, db.AddSampler(sampler))
	must(t, db.PutFuture(future))
	for name, err := range map[string]error{"model": db.AddModel(model), "session": db.AddSession(session), "run": db.AddRun(run),
		"checkpoint": db.AddCheckpoint(point), "sampler": db.AddSampler(sampler)} {
		if !errors.Is(err, ErrExists) {
			t.Errorf("second %s: %v", name, err)
		}
	}
	must(t, db.Close())

	db, err = Open(path, opt)
	must(t, err)
	same := func(got, want any, err error) {
		t.Helper()
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, %v\nwant %+v", got, err, want)
		}
	}
	gotModel, err := db.Model("org/name:mine")
	same(gotModel, model, err)
	gotModel, err = db.Model("org/name")
	same(gotModel, model, err)
	gotSession, err := db.Session("s")
	same(gotSession, session, err)
	gotRun, err := db.Run(run.ID)
	same(gotRun, run, err)
	gotPoint, err := db.Checkpoint(point.CheckpointKey)
	same(gotPoint, point, err)
	gotSampler, err := db.Sampler(sampler.ID)
	same(gotSampler, sampler, err)
	gotFuture, err := db.Future("f")
	same(gotFuture, future, err)
	listed, total, err := db.Checkpoints(Page{})
	point.Tensors, point.Optimizer = nil, nil
	same(listed, []Checkpoint{point}, err)
	runs, err := db.RunsOf("s")
	same(runs, []Run{run}, err)
	samplers, err := db.SamplersOf("s")
	same(samplers, []Sampler{sampler}, err)
	if total != 1 {
		t.Errorf("total %d", total)
	}
	must(t, db.Close())
	report := recheck(t, path)
	for _, noun := range []string{"model", "session", "run", "checkpoint", "sampler", "future"} {
		if report.Records[noun] != 1 {
			t.Errorf("check saw %d records of %s", report.Records[noun], noun)
		}
	}
	if report.Blobs != 2 || report.Hashed != config.Size+weights.Size {
		t.Errorf("check saw %+v", report)
	}
}

func TestModelsAndAliases(t *testing.T) {
	db, c := open(t)
	info := putBlob(t, db, []byte("{}"))
	file := File{"config.json", info.Size, info.Sum, info.ID}
	must(t, db.PutModel(Model{Name: "a/a", Aliases: []string{"x/x", "y/y"}, Created: c.now, Files: []File{file}}))
	c.pass(time.Second)
	must(t, db.PutModel(Model{Name: "b/b", Created: c.now, Files: []File{file, {"copy.json", info.Size, info.Sum, info.ID}}}))
	wantErr(t, db.PutModel(Model{Name: "c/c", Aliases: []string{"x/x"}}), ErrExists)
	wantErr(t, db.PutModel(Model{Name: "c/c", Aliases: []string{"b/b"}}), ErrExists)
	wantErr(t, db.PutModel(Model{Name: "x/x"}), ErrExists)
	wantErr(t, db.PutModel(Model{Name: "d/d", Files: []File{{"f", info.Size + 1, info.Sum, info.ID}}}), ErrInvalid)
	wantErr(t, db.PutModel(Model{Name: "d/d", Files: []File{{"f", info.Size, blob.Sum{}, info.ID}}}), ErrInvalid)
	wantErr(t, db.PutModel(Model{Name: "d/d", Files: []File{{"f", 1, blob.Sum{}, 999}}}), blob.ErrNotFound)
	must(t, db.UpdateModel("a/a", func(m *Model) error { m.Aliases = []string{"y/y"}; return nil }))
	_, err := db.Model("x/x")
	wantErr(t, err, ErrNotFound)
	ms, err := db.Models()
	if err != nil || len(ms) != 2 || ms[0].Name != "b/b" {
		t.Errorf("models %+v, %v", ms, err)
	}
	must(t, db.DeleteModel("a/a"))
	wantErr(t, db.DeleteModel("a/a"), ErrNotFound)
	_, err = db.Model("y/y")
	wantErr(t, err, ErrNotFound)
	sound(t, db)
}

func TestHostileNames(t *testing.T) {
	db, _ := open(t)
	info := putBlob(t, db, []byte("{}"))
	for _, name := range []string{"", "..", "../a", "a/../b", "/etc/passwd", "a\x00b", "a\nb", "a//b", "a/", `a\b`, ".", "\xff", strings.Repeat("x", 4096)} {
		wantErr(t, db.PutModel(Model{Name: name}), ErrInvalid)
		wantErr(t, db.PutModel(Model{Name: "m", Aliases: []string{name}}), ErrInvalid)
		wantErr(t, db.PutModel(Model{Name: "m", Files: []File{{name, info.Size, info.Sum, info.ID}}}), ErrInvalid)
		wantErr(t, db.PutCheckpoint(Checkpoint{CheckpointKey: key("r", KindWeights, name)}), ErrInvalid)
	}
	for _, id := range []string{"", "a\x00b", "\x01", "\xff", strings.Repeat("x", 4096)} {
		wantErr(t, db.PutSession(Session{ID: id}), ErrInvalid)
		wantErr(t, db.PutRun(Run{ID: id}), ErrInvalid)
		wantErr(t, db.PutSampler(Sampler{ID: id}), ErrInvalid)
		wantErr(t, db.PutFuture(Future{ID: id, State: FuturePending}), ErrInvalid)
		_, err := db.Session(id)
		wantErr(t, err, ErrNotFound)
		if id != "" {
			wantErr(t, db.PutRun(Run{ID: "r", SessionID: id}), ErrInvalid)
			wantErr(t, db.PutFuture(Future{ID: "f", RunID: id, State: FuturePending}), ErrInvalid)
		}
	}
	wantErr(t, db.PutRun(Run{ID: "a/b"}), ErrInvalid)
	wantErr(t, db.PutCheckpoint(Checkpoint{CheckpointKey: key("r", "other", "n")}), ErrInvalid)
	wantErr(t, db.PutFuture(Future{ID: "f", State: "odd"}), ErrInvalid)
	wantErr(t, db.PutFuture(Future{ID: "f", State: FutureDone}), ErrInvalid)
	for path, want := range map[string]error{"tinker://s:train:0/weights/a": nil, "tinker://s/weights": ErrInvalid, "s/weights/a": ErrInvalid,
		"tinker://s/weights/..": ErrInvalid, "tinker://s/weights/a/b": ErrInvalid, "tinker:///weights/a": ErrInvalid, "tinker://s/odd/a": ErrInvalid} {
		k, err := ParsePath(path)
		if !errors.Is(err, want) || err == nil && k.Path() != path {
			t.Errorf("ParsePath(%q) = %v, %v", path, k, err)
		}
	}
}

func TestCheckpointReferences(t *testing.T) {
	db, c := open(t)
	const size = 3*blob.ChunkSize + 12
	k := key("r", KindWeights, "a")
	putCheckpoint(t, db, Checkpoint{CheckpointKey: k, Created: c.now}, 1, size)
	putCheckpoint(t, db, Checkpoint{CheckpointKey: key("r", KindSampler, "a"), Created: c.now}, 2, size) // shares one tensor
	left := func(blobs int) {
		t.Helper()
		_, err := db.Blobs().Collect(t.Context(), false)
		must(t, err)
		if r := sound(t, db); r.Blobs != blobs {
			t.Errorf("%d blobs left, want %d", r.Blobs, blobs)
		}
	}
	left(3)
	wantErr(t, db.PutCheckpoint(Checkpoint{CheckpointKey: key("r", KindWeights, "b"), Tensors: []Tensor{{Name: "t", Blob: 77}}}), blob.ErrNotFound)
	got, err := db.Checkpoint(k)
	must(t, err)
	long := got
	long.Tensors = []Tensor{got.Tensors[0]}
	long.Tensors[0].Offset = 1
	wantErr(t, db.PutCheckpoint(long), ErrInvalid)
	long.Tensors[0].Offset = -1
	wantErr(t, db.PutCheckpoint(long), ErrInvalid)
	must(t, db.UpdateCheckpoint(k, func(c *Checkpoint) error { c.Public = true; return nil }))
	left(3)
	putCheckpoint(t, db, Checkpoint{CheckpointKey: k, Created: c.now}, 50, size) // overwrite: tensor 1 goes
	left(4)
	must(t, db.DeleteCheckpoint(k))
	wantErr(t, db.DeleteCheckpoint(k), ErrNotFound)
	left(2)
	must(t, db.DeleteCheckpoint(key("r", KindSampler, "a")))
	left(0)
	failed := errors.New("no")
	must(t, db.PutRun(Run{ID: "r"}))
	wantErr(t, db.UpdateRun("r", func(r *Run) error { r.LastSeq = 5; return failed }), failed)
	wantErr(t, db.UpdateRun("r", func(r *Run) error { r.ID = "q"; return nil }), ErrInvalid)
	wantErr(t, db.UpdateRun("q", func(r *Run) error { return nil }), ErrNotFound)
	if r, err := db.Run("r"); err != nil || r.LastSeq != 0 {
		t.Errorf("failed update changed the run: %+v, %v", r, err)
	}
}

func TestListsAndExpiry(t *testing.T) {
	db, c := open(t)
	start := c.now
	for i := range 30 {
		run := fmt.Sprintf("s:train:%d", i%3*10) // s:train:0, 10, 20: prefixes of one another
		ck := Checkpoint{CheckpointKey: key(run, []Kind{KindWeights, KindSampler}[i%2], fmt.Sprintf("n%02d", i)), Created: c.now}
		if i%5 == 0 {
			e := start.Add(2 * time.Hour)
			ck.Expires = &e
		}
		must(t, db.PutCheckpoint(ck))
		c.pass(time.Minute)
	}
	names := func(cs []Checkpoint) (s string) {
		for _, c := range cs {
			s += " " + c.Name
		}
		return s
	}
	list := func(page Page) ([]Checkpoint, int) {
		t.Helper()
		cs, total, err := db.Checkpoints(page)
		must(t, err)
		return cs, total
	}
	cs, total := list(Page{Limit: 3, Offset: 2})
	if names(cs) != " n27 n26 n25" || total != 30 {
		t.Errorf("page:%s of %d", names(cs), total)
	}
	of, total, err := db.CheckpointsOf("s:train:0", Page{Limit: 2})
	if err != nil || names(of) != " n27 n24" || total != 10 {
		t.Errorf("of one run:%s of %d, %v", names(of), total, err)
	}
	of, total, err = db.CheckpointsOf("s:train:1", Page{})
	if err != nil || len(of) != 0 || total != 0 {
		t.Errorf("of no run:%s of %d, %v", names(of), total, err)
	}
	if l, err := db.LatestCheckpoint("s:train:0", KindWeights); err != nil || l.Name != "n24" {
		t.Errorf("latest %s, %v", l.Name, err)
	}
	if l, err := db.LatestCheckpoint("s:train:0", KindExternal); !errors.Is(err, ErrNotFound) {
		t.Errorf("latest export %s, %v", l.Name, err)
	}
	if cs, total := list(Page{Offset: 100}); len(cs) != 0 || total != 30 {
		t.Errorf("beyond the end:%s of %d", names(cs), total)
	}

	kept := key("s:train:0", KindWeights, "n00")
	must(t, db.UpdateCheckpoint(kept, func(c *Checkpoint) error { c.Expires = nil; return nil }))
	c.pass(2 * time.Hour)
	if cs, total := list(Page{}); len(cs) != 25 || total != 25 {
		t.Errorf("after expiry %d of %d", len(cs), total)
	}
	gone := key("s:train:20", KindSampler, "n05")
	_, err = db.Checkpoint(gone)
	wantErr(t, err, ErrNotFound)
	wantErr(t, db.UpdateCheckpoint(gone, func(*Checkpoint) error { return nil }), ErrNotFound)
	must(t, db.AddCheckpoint(Checkpoint{CheckpointKey: gone, Created: c.now})) // an expired name is free
	_, err = db.Checkpoint(kept)
	must(t, err)
	if n, err := db.SweepExpired(t.Context(), c.now); err != nil || n != 4 {
		t.Errorf("swept %d, %v", n, err)
	}
	if r := sound(t, db); r.Records["checkpoint"] != 26 {
		t.Errorf("%d checkpoints left", r.Records["checkpoint"])
	}
}

func TestRunsSessionsSamplers(t *testing.T) {
	db, c := open(t)
	for i := range 12 {
		session := fmt.Sprint("s", i/6)
		must(t, db.PutRun(Run{ID: fmt.Sprintf("%s:train:%d", session, i%6), SessionID: session, ModelSeq: int64(i % 6), Created: c.now}))
		must(t, db.PutSampler(Sampler{ID: fmt.Sprint("p", i), SessionID: session, Created: c.now}))
		must(t, db.PutSession(Session{ID: fmt.Sprint("t", i), Created: c.now}))
		c.pass(time.Second)
	}
	runs, total, err := db.Runs(Page{Limit: 2})
	if err != nil || total != 12 || runs[0].ID != "s1:train:5" || runs[1].ID != "s1:train:4" {
		t.Errorf("runs %+v of %d, %v", runs, total, err)
	}
	runs, err = db.RunsOf("s0")
	if err != nil || len(runs) != 6 || runs[0].ID != "s0:train:5" {
		t.Errorf("runs of s0: %+v, %v", runs, err)
	}
	sessions, total, err := db.Sessions(Page{Offset: 11, Limit: 5})
	if err != nil || total != 12 || len(sessions) != 1 || sessions[0].ID != "t0" {
		t.Errorf("sessions %+v of %d, %v", sessions, total, err)
	}
	samplers, total, err := db.Samplers(Page{Limit: 1})
	if err != nil || total != 12 || samplers[0].ID != "p11" {
		t.Errorf("samplers %+v of %d, %v", samplers, total, err)
	}
	must(t, db.TouchSessions(map[string]time.Time{"t0": c.now, "t1": c.now.Add(-time.Hour), "none": c.now}))
	must(t, db.TouchSessions(map[string]time.Time{"t0": c.now.Add(-time.Minute)}))
	if s, err := db.Session("t0"); err != nil || !s.LastSeen.Equal(c.now) {
		t.Errorf("last seen %v, %v", s.LastSeen, err)
	}
	must(t, db.UpdateRun("s0:train:0", func(r *Run) error { r.SessionID = "s1"; return nil }))
	must(t, db.UpdateSession("t0", func(s *Session) error { s.ProjectID = "p"; return nil }))
	must(t, db.UpdateSampler("p0", func(s *Sampler) error { s.ModelPath = "x"; return nil }))
	must(t, db.DeleteRun("s0:train:1"))
	must(t, db.DeleteSession("t1"))
	must(t, db.DeleteSampler("p1"))
	if runs, err := db.RunsOf("s0"); err != nil || len(runs) != 4 {
		t.Errorf("%d runs of s0, %v", len(runs), err)
	}
}

func TestFutures(t *testing.T) {
	db, c := open(t)
	var fs []Future
	for i := range 20 {
		f := Future{ID: fmt.Sprintf("f%02d", i), Kind: "optim_step", RunID: "r", Seq: int64(20 - i), State: FuturePending, Created: c.now}
		if i >= 10 {
			f.RunID, f.SamplerID, f.Seq = "", "p", 1_000_000_000_000_000_000+int64(i)
		}
		fs = append(fs, f)
		c.pass(time.Millisecond)
	}
	before := db.bolt.Stats()
	must(t, db.PutFutures(fs))
	after := db.bolt.Stats()
	if n := after.TxStats.GetWrite() - before.TxStats.GetWrite(); n > 10 {
		t.Errorf("20 futures took %d page writes", n)
	}
	for i := range 5 {
		must(t, db.UpdateFuture(fs[i].ID, func(f *Future) error {
			f.State, f.Done, f.Result = FutureDone, c.now, content(uint64(i), 1000)
			return nil
		}))
		c.pass(time.Second)
	}
	pending, err := db.PendingFutures()
	if err != nil || len(pending) != 15 || pending[0].ID != "f05" {
		t.Errorf("pending %d, %v", len(pending), err)
	}
	of, err := db.FuturesOf("r")
	if err != nil || len(of) != 10 || of[0].Seq != 11 || of[9].Seq != 20 || of[9].Result != nil {
		t.Errorf("futures of r: %+v, %v", of, err)
	}
	if f, err := db.Future("f03"); err != nil || !bytes.Equal(f.Result, content(3, 1000)) {
		t.Errorf("result of f03: %d bytes, %v", len(f.Result), err)
	}
	bad := append([]Future{{ID: "g", State: FuturePending}}, Future{ID: "h", State: "odd"})
	wantErr(t, db.PutFutures(bad), ErrInvalid)
	_, err = db.Future("g")
	wantErr(t, err, ErrNotFound)
	wantErr(t, db.DeleteFutures("f19", "none"), ErrNotFound)
	_, err = db.Future("f19") // all or none
	must(t, err)
	must(t, db.DeleteFutures("f19", "f18"))
	if n, err := db.SweepFutures(t.Context(), c.now.Add(-2*time.Second)); err != nil || n != 3 {
		t.Errorf("swept %d, %v", n, err)
	}
}

func TestCallerPanicPasses(t *testing.T) {
	db, _ := open(t)
	must(t, db.PutRun(Run{ID: "r"}))
	func() {
		defer func() {
			if r := recover(); r != "boom" {
				t.Errorf("recovered %v", r)
			}
		}()
		_ = db.UpdateRun("r", func(*Run) error { panic("boom") })
	}()
	must(t, db.UpdateRun("r", func(r *Run) error { r.LastSeq = 1; return nil })) // the lock is free
}

// TestCheckFinds breaks one thing at a time and expects Check to name it.
func TestCheckFinds(t *testing.T) {
	del := func(bucket string, pick func(k []byte) bool) func(tx *bolt.Tx) error {
		return func(tx *bolt.Tx) error {
			c := tx.Bucket([]byte(bucket)).Cursor()
			for k, _ := c.First(); k != nil; k, _ = c.Next() {
				if pick == nil || pick(k) {
					return c.Delete()
				}
			}
			return fmt.Errorf("nothing to delete in %s", bucket)
		}
	}
	set := func(bucket, key string, value []byte) func(tx *bolt.Tx) error {
		return func(tx *bolt.Tx) error { return tx.Bucket([]byte(bucket)).Put([]byte(key), value) }
	}
	for _, c := range []struct {
		name, want string
		harm       func(tx *bolt.Tx) error
	}{
		{"index entry lost", "index checkpoint.run", del("checkpoint.run", nil)},
		{"index entry too many", "index run.created", set("run.created", "12345678x", make([]byte, 8))},
		{"record lost", "counts 1 references", del("model", nil)},
		{"body lost", "references, records have", del("checkpoint.body", nil)},
		{"body too many", "body without record", set("future.body", "x", []byte{1})},
		{"record unreadable", "damaged", set("run", "r", []byte("\x01{"))},
		{"record of a newer program", "newer", set("run", "r", []byte("\x09{}"))},
		{"record under another key", "stored under the key", set("run", "other", []byte("\x01{\"id\":\"r\"}"))},
		{"chunk lost", "chunks", del("blob.chunk", nil)},
		{"chunk short", "bytes, not", set("blob.chunk", "\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00", []byte("x"))},
		{"chunk of nothing", "without description", set("blob.chunk", "\x00\x00\x00\x00\x00\x00\x09\x09\x00\x00\x00\x00", []byte("x"))},
		{"hash index lost", "hash index", del("blob.sum", nil)},
		{"blob lost", "isn't there", del("blob", nil)},
		{"alias lost", "isn't indexed", del("model.alias", nil)},
		{"alias too many", "alias", set("model.alias", "q", []byte("m"))},
		{"content changed", "hash mismatch", func(tx *bolt.Tx) error {
			c := tx.Bucket([]byte("blob.chunk")).Cursor()
			k, v := c.First()
			return tx.Bucket([]byte("blob.chunk")).Put(k, append([]byte{v[0] ^ 1}, v[1:]...))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			db, err := Open(filepath.Join(t.TempDir(), "smolgym.db"), Options{Now: newClock().Now, Blob: smallBlobs})
			must(t, err)
			defer db.Close()
			info := putBlob(t, db, content(9, 100))
			must(t, db.PutModel(Model{Name: "m", Aliases: []string{"n"}, Files: []File{{"f", info.Size, info.Sum, info.ID}}}))
			must(t, db.PutRun(Run{ID: "r"}))
			putCheckpoint(t, db, Checkpoint{CheckpointKey: key("r", KindWeights, "a")}, 1, blob.ChunkSize+4)
			sound(t, db)
			must(t, db.bolt.Update(c.harm))
			report, err := db.Check(t.Context(), true)
			must(t, err)
			if all := strings.Join(report.Problems, "\n"); !strings.Contains(all, c.want) {
				t.Errorf("want a problem with %q, have:\n%s", c.want, all)
			}
		})
	}
}

func TestConcurrent(t *testing.T) {
	db, c := open(t)
	must(t, db.PutRun(Run{ID: "r"}))
	var wg sync.WaitGroup
	for w := range 3 {
		wg.Go(func() {
			for i := range 6 {
				k := key("r", KindWeights, fmt.Sprintf("n%d", i%3))
				if err := saveCheckpoint(db, Checkpoint{CheckpointKey: k, Created: c.Now()}, uint64(w*2+i%2), blob.ChunkSize/2); err != nil {
					t.Error(err)
				}
				if got, err := db.Checkpoint(k); err != nil && !errors.Is(err, ErrNotFound) {
					t.Error(err)
				} else if err == nil {
					r, err := db.Blobs().Open(got.Tensors[0].Blob)
					if errors.Is(err, blob.ErrNotFound) { // replaced and collected meanwhile
						continue
					}
					if err != nil {
						t.Error(err)
						continue
					}
					h := sha256.New()
					if _, err := r.WriteTo(h); err != nil || blob.Sum(h.Sum(nil)) != r.Info().Sum {
						t.Errorf("tensor changed under a reader: %v", err)
					}
					r.Close()
				}
				if err := db.UpdateRun("r", func(r *Run) error { r.LastSeq++; return nil }); err != nil {
					t.Error(err)
				}
				if _, err := db.Blobs().Collect(t.Context(), false); err != nil && !errors.Is(err, blob.ErrPinned) {
					t.Error(err)
				}
				if err := db.PutFutures([]Future{{ID: fmt.Sprint(w, i), State: FuturePending, RunID: "r", Seq: int64(i)}}); err != nil {
					t.Error(err)
				}
				if _, _, err := db.CheckpointsOf("r", Page{Limit: 2}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Go(func() {
		dst := filepath.Join(filepath.Dir(db.Path()), "copy", "smolgym.db")
		must(t, os.Mkdir(filepath.Dir(dst), 0o700))
		if err := db.Compact(t.Context(), dst); err != nil {
			t.Error(err)
			return
		}
		recheck(t, dst)
	})
	wg.Wait()
	if r, err := db.Run("r"); err != nil || r.LastSeq != 18 {
		t.Errorf("updates lost: %d of 18, %v", r.LastSeq, err)
	}
}
