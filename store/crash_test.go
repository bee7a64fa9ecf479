package store

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"smolgym/store/blob"

	bolt "go.etcd.io/bbolt"
)

// childEnv makes the test binary save checkpoints into the store it names until it
// is killed, or hold that store open until its input ends.
const childEnv = "SMOLGYM_STORE_TEST_CHILD"

func TestMain(m *testing.M) {
	if job, path, ok := strings.Cut(os.Getenv(childEnv), " "); ok {
		if err := child(job, path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func child(job, path string) error {
	db, err := Open(path, Options{Now: newClock().Now, Blob: smallBlobs})
	if err != nil {
		return err
	}
	defer db.Close()
	fmt.Println("open")
	if job == "hold" {
		_, err := bufio.NewReader(os.Stdin).ReadByte()
		return err
	}
	last, _, err := db.Checkpoints(Page{Limit: 1})
	if err != nil {
		return err
	}
	for i := indexOf(last) + 1; ; i++ {
		c := Checkpoint{CheckpointKey: key("r", KindWeights, strconv.Itoa(i)), Created: newClock().now.Add(time.Duration(i))}
		if err := saveCheckpoint(db, c, uint64(2*i), 3*blob.ChunkSize+i); err != nil {
			return err
		}
		fmt.Println("saved", i)
	}
}

// indexOf is the number of the newest checkpoint, -1 if there is none.
func indexOf(cs []Checkpoint) int {
	if len(cs) == 0 {
		return -1
	}
	n, err := strconv.Atoi(cs[0].Name)
	if err != nil {
		panic(err)
	}
	return n
}

func startChild(t *testing.T, job, path string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+job+" "+path)
	cmd.Stderr = os.Stderr
	_, err := cmd.StdinPipe() // open until the process ends
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		t.Fatal("child said nothing")
	}
	return cmd, lines
}

// TestFR28Kill kills a process at 20 random moments of saving: afterwards every
// acknowledged checkpoint is listed, every listed one whole, and no bytes are left over.
func TestFR28Kill(t *testing.T) {
	path := filepath.Join(t.TempDir(), "smolgym.db")
	rng := rand.New(rand.NewPCG(28, 1))
	acknowledged, oldest, save := -1, 0, time.Duration(0)
	for round := range 20 {
		cmd, lines := startChild(t, "save", path)
		started, delay := time.Now(), time.Duration(0)
		if round > 0 {
			delay = time.Duration(rng.Int64N(int64(2 * save)))
		} else if lines.Scan() { // the first round sees a save through to know how long one takes
			save, acknowledged = time.Since(started), 0
		}
		kill := time.AfterFunc(delay, func() { _ = cmd.Process.Kill() })
		for lines.Scan() {
			if n, err := strconv.Atoi(strings.TrimPrefix(lines.Text(), "saved ")); err == nil {
				acknowledged = n
			}
		}
		kill.Stop()
		var exit *exec.ExitError
		if err := cmd.Wait(); !errors.As(err, &exit) || exit.Exited() {
			t.Fatalf("round %d: child ended by itself: %v", round, err)
		}
		db, err := Open(path, Options{Now: newClock().Now, Blob: smallBlobs})
		must(t, err)
		sound(t, db)
		all, total, err := db.Checkpoints(Page{})
		must(t, err)
		newest := indexOf(all)
		if newest != acknowledged && newest != acknowledged+1 { // the last may be in but not yet reported
			t.Fatalf("round %d: newest is %d, %d was acknowledged", round, newest, acknowledged)
		}
		if want := newest - oldest + 1; total != want {
			t.Fatalf("round %d: %d checkpoints listed, want %d", round, total, want)
		}
		for _, c := range all {
			checkSaved(t, db, c.CheckpointKey)
		}
		_, err = db.Blobs().Collect(t.Context(), false)
		must(t, err)
		if u, err := db.Usage(); err != nil || u.Blobs.Blobs != 2*total || u.Blobs.Uploads != 0 {
			t.Fatalf("round %d: %+v blobs for %d checkpoints, %v", round, u.Blobs, total, err)
		}
		for ; oldest < newest; oldest++ {
			must(t, db.DeleteCheckpoint(key("r", KindWeights, strconv.Itoa(oldest))))
		}
		acknowledged = newest
		must(t, db.Close())
	}
	if acknowledged < 3 {
		t.Errorf("only %d checkpoints in 20 rounds: the kills came too early to mean much", acknowledged+1)
	}
}

// checkSaved compares a checkpoint's bytes with what the child saved.
func checkSaved(t *testing.T, db *DB, k CheckpointKey) {
	t.Helper()
	c, err := db.Checkpoint(k)
	must(t, err)
	i := indexOf([]Checkpoint{c})
	for j, tensor := range c.Tensors {
		r, err := db.Blobs().Open(tensor.Blob)
		must(t, err)
		defer r.Close()
		var b bytes.Buffer
		_, err = r.WriteTo(&b)
		must(t, err)
		if !bytes.Equal(b.Bytes(), content(uint64(2*i+j), 3*blob.ChunkSize+i)) {
			t.Fatalf("checkpoint %d tensor %d differs", i, j)
		}
	}
}

// TestTornCommit builds the files that a power cut within one commit can leave:
// any subset of the new pages, and a torn header. Each opens as the old state or,
// with a whole header, the new one.
func TestTornCommit(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "smolgym.db")
	opt := Options{Now: newClock().Now, Blob: smallBlobs}
	db, err := Open(path, opt)
	must(t, err)
	pad := map[string]string{"pad": strings.Repeat("x", 3*pageSize)} // too big to share the root's page
	putCheckpoint(t, db, Checkpoint{CheckpointKey: key("r", KindWeights, "a"), UserMetadata: pad}, 1, 2*blob.ChunkSize)
	old, err := os.ReadFile(path)
	must(t, err)
	must(t, db.UpdateCheckpoint(key("r", KindWeights, "a"), func(c *Checkpoint) error { c.Step = 1; return nil }))
	fresh, err := os.ReadFile(path)
	must(t, err)
	must(t, db.Close())

	var data []int // changed pages
	header := -1
	for p := 0; p*pageSize < len(fresh); p++ {
		at := p * pageSize
		switch {
		case at < len(old) && bytes.Equal(old[at:at+pageSize], fresh[at:at+pageSize]):
		case p < 2:
			header = p
		default:
			data = append(data, p)
		}
	}
	if header < 0 || len(data) < 3 {
		t.Fatalf("commit changed header %d and pages %v", header, data)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	steps := map[int64]int{}
	for i := range 40 {
		cut := bytes.Clone(old)
		cut = append(cut, make([]byte, max(0, len(fresh)-len(old)))...)
		take := func(p, from, to int) { copy(cut[p*pageSize+from:p*pageSize+to], fresh[p*pageSize+from:]) }
		for _, p := range data { // headers are written after the pages are synced
			if i >= 20 || rng.IntN(2) == 0 {
				take(p, 0, pageSize)
			} else {
				take(p, 0, rng.IntN(pageSize))
			}
		}
		if i >= 20 {
			take(header, 0, rng.IntN(100)) // 16 bytes of page header, 64 of content
		}
		file := filepath.Join(dir, "cut", "smolgym.db")
		must(t, os.MkdirAll(filepath.Dir(file), 0o700))
		must(t, os.WriteFile(file, cut, 0o600))
		db, err := Open(file, opt)
		must(t, err)
		sound(t, db)
		c, err := db.Checkpoint(key("r", KindWeights, "a"))
		must(t, err)
		if i < 20 && c.Step != 0 {
			t.Errorf("cut %d: new state without its header", i)
		}
		steps[c.Step]++
		must(t, db.Close())
	}
	if steps[0]+steps[1] != 40 || steps[1] == 0 {
		t.Errorf("states seen: %v", steps)
	}
}

// TestDamagedFile expects a refusal with advice, or a store that says what is
// broken, and never a panic.
func TestDamagedFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "good", "smolgym.db")
	must(t, os.MkdirAll(filepath.Dir(path), 0o700))
	db, err := Open(path, Options{Now: newClock().Now, Blob: smallBlobs})
	must(t, err)
	for i := range 200 {
		must(t, db.PutRun(Run{ID: fmt.Sprint("r", i), UserMetadata: map[string]string{"pad": strings.Repeat("x", 500)}}))
	}
	putCheckpoint(t, db, Checkpoint{CheckpointKey: key("r", KindWeights, "a")}, 1, 2*blob.ChunkSize)
	must(t, db.Close())
	good, err := os.ReadFile(path)
	must(t, err)

	if opened, problems := tryOpen(t, "intact", good); !opened || problems != 0 {
		t.Fatalf("intact file: opened %v, %d problems", opened, problems)
	}
	for name, raw := range map[string][]byte{
		"cut in half":   good[:len(good)/2],
		"two pages":     good[:2*pageSize],
		"one byte":      good[:1],
		"text":          []byte(strings.Repeat("this is not a store\n", 5000)),
		"zeroes":        make([]byte, 1<<20),
		"headers wiped": append(make([]byte, 2*pageSize), good[2*pageSize:]...),
	} {
		if opened, _ := tryOpen(t, name, raw); opened {
			t.Errorf("%s: opened", name)
		}
	}
	var pages []int // those that begin with a page header: tree and free list
	for p := 2; p < len(good)/pageSize; p++ {
		if binary.LittleEndian.Uint64(good[p*pageSize:]) == uint64(p) {
			pages = append(pages, p)
		}
	}
	rng := rand.New(rand.NewPCG(3, 3))
	refused, found := 0, 0
	for i := range 60 {
		raw := bytes.Clone(good)
		p := pages[rng.IntN(len(pages))]
		for range 1 + rng.IntN(4) { // in the header and the elements behind it
			raw[p*pageSize+rng.IntN(64)] ^= byte(1 + rng.IntN(255))
		}
		opened, problems := tryOpen(t, fmt.Sprint("flip ", i), raw)
		switch {
		case !opened:
			refused++
		case problems > 0:
			found++
		}
	}
	if refused+found < 30 {
		t.Errorf("of 60 broken pages %d stopped the start, %d were found", refused, found)
	}
	t.Logf("of 60 broken pages %d stopped the start, %d were found by check", refused, found)
}

// tryOpen opens and checks a file of these bytes; every failure must be one that
// tells of damage.
func tryOpen(t *testing.T, name string, raw []byte) (opened bool, problems int) {
	t.Helper()
	// A folder of its own: bbolt may panic on opening and leave its lock behind.
	file := filepath.Join(t.TempDir(), "smolgym.db")
	must(t, os.WriteFile(file, raw, 0o600))
	db, err := Open(file, Options{Now: newClock().Now, Blob: smallBlobs})
	if err != nil {
		if !errors.Is(err, ErrDamaged) && !errors.Is(err, blob.ErrCorrupt) && !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: refused with %v", name, err)
		}
		if errors.Is(err, ErrDamaged) && !strings.Contains(err.Error(), "backup") {
			t.Errorf("%s: no advice in %v", name, err)
		}
		return false, 0
	}
	report, err := db.Check(t.Context(), true)
	if err != nil && !errors.Is(err, ErrDamaged) && !errors.Is(err, blob.ErrCorrupt) {
		t.Errorf("%s: check: %v", name, err)
	}
	_, _, err = db.Runs(Page{})
	if err != nil && !errors.Is(err, ErrDamaged) {
		t.Errorf("%s: list: %v", name, err)
	}
	if err := db.Close(); err != nil && !errors.Is(err, ErrDamaged) {
		t.Errorf("%s: close: %v", name, err)
	}
	return true, len(report.Problems)
}

func TestSecondProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "smolgym.db")
	cmd, _ := startChild(t, "hold", path)
	_, err := Open(path, Options{})
	wantErr(t, err, ErrLocked)
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("process %d, started 2026-03-01T12:00:00Z", cmd.Process.Pid)) {
		t.Errorf("holder not named: %v", err)
	}
	must(t, cmd.Process.Kill())
	_ = cmd.Wait()
	db, err := Open(path, Options{}) // a dead process's lock file stops nobody
	must(t, err)
	_, err = Open(path, Options{})
	wantErr(t, err, ErrLocked)
	must(t, db.Close())
	if _, err := os.Stat(lockPath(path)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("lock file after close: %v", err)
	}
}

func TestOtherFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "smolgym.db")
	db, err := Open(path, Options{})
	must(t, err)
	must(t, db.update(func(tx *bolt.Tx) error {
		return tx.Bucket(metaBucket).Put(schemaKey, binary.BigEndian.AppendUint32(nil, Schema+1))
	}))
	must(t, db.Close())
	before, err := os.ReadFile(path)
	must(t, err)
	_, err = Open(path, Options{})
	wantErr(t, err, ErrNewer)
	after, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(before, after) {
		t.Error("refusing a newer file changed it")
	}

	foreign := filepath.Join(t.TempDir(), "other.db")
	other, err := bolt.Open(foreign, 0o600, nil)
	must(t, err)
	must(t, other.Update(func(tx *bolt.Tx) error { _, err := tx.CreateBucket([]byte("theirs")); return err }))
	must(t, other.Close())
	_, err = Open(foreign, Options{})
	wantErr(t, err, ErrInvalid)
	_, err = Open(filepath.Join(t.TempDir(), "no", "folder.db"), Options{})
	wantErr(t, err, os.ErrNotExist)
}

func TestFR28DiskFull(t *testing.T) {
	path := filepath.Join(t.TempDir(), "smolgym.db")
	db, err := Open(path, Options{Now: newClock().Now, Blob: smallBlobs, maxSize: 24 << 20})
	must(t, err)
	k := key("r", KindWeights, "0")
	putCheckpoint(t, db, Checkpoint{CheckpointKey: k}, 1, 2*blob.ChunkSize)
	full := 0
	for i := 1; i < 20; i++ {
		if err := saveCheckpoint(db, Checkpoint{CheckpointKey: key("r", KindWeights, fmt.Sprint(i))}, uint64(10*i), 2*blob.ChunkSize); err != nil {
			full++
		}
	}
	if full == 0 {
		t.Fatal("80 MiB fit into 24")
	}
	sound(t, db)
	_, total, err := db.Checkpoints(Page{})
	if err != nil || total != 20-full {
		t.Errorf("%d checkpoints after %d failures, %v", total, full, err)
	}
	must(t, db.DeleteCheckpoint(k))
	must(t, db.DeleteCheckpoint(key("r", KindWeights, "1")))
	_, err = db.Blobs().Collect(t.Context(), false)
	must(t, err)
	putCheckpoint(t, db, Checkpoint{CheckpointKey: k}, 1, 2*blob.ChunkSize) // there is room again
	must(t, db.Close())
	recheck(t, path)
}

// TestFR27CleanUp saves and deletes 5 MB twenty times beside 5 MB that stay: the
// file stays within three times the live data, and compaction leaves only that.
func TestFR27CleanUp(t *testing.T) {
	db, _ := open(t)
	const tensor = 5 * blob.ChunkSize / 2
	keep := key("r", KindWeights, "keep")
	putCheckpoint(t, db, Checkpoint{CheckpointKey: keep}, 1, tensor)
	k := key("r", KindWeights, "k")
	for i := range 20 {
		putCheckpoint(t, db, Checkpoint{CheckpointKey: k}, uint64(100+10*i), tensor)
		if i == 19 {
			break // the last stays: live are two checkpoints
		}
		must(t, db.DeleteCheckpoint(k))
		_, err := db.Blobs().Collect(t.Context(), false)
		must(t, err)
	}
	u, err := db.Usage()
	must(t, err)
	if u.File > 3*u.Blobs.Bytes {
		t.Errorf("file of %d bytes for %d live", u.File, u.Blobs.Bytes)
	}
	dst := filepath.Join(filepath.Dir(db.Path()), "copy", "smolgym.db")
	must(t, os.Mkdir(filepath.Dir(dst), 0o700))
	must(t, db.DeleteCheckpoint(keep)) // its bytes aren't collected yet and shouldn't be copied
	must(t, db.Compact(t.Context(), dst))
	wantErr(t, db.Compact(t.Context(), dst), os.ErrExist)
	info, err := os.Stat(dst)
	must(t, err)
	if live := int64(2 * tensor); info.Size() > live+3<<20 {
		t.Errorf("compacted to %d bytes for %d live", info.Size(), live)
	}
	recheck(t, dst)
	want, err := db.Checkpoint(k)
	must(t, err)
	c, err := Open(dst, Options{Now: newClock().Now})
	must(t, err)
	defer c.Close()
	got, err := c.Checkpoint(k)
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("copy has %+v, %v; want %+v", got, err, want)
	}
	t.Logf("file %d bytes, live %d, compacted %d", u.File, u.Blobs.Bytes, info.Size())
}
