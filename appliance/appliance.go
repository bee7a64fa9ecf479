package appliance

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"smolgym/appliance/engine"
	"smolgym/kernels"
	"smolgym/model/ir"
	"smolgym/store"
	"smolgym/store/blob"
)

// Options say where the appliance keeps its data and what it computes with.
type Options struct {
	Data      string // folder, made if it isn't there
	Device    string // auto, cpu or cuda[:N]; empty is auto
	Precision string // auto, fp32 or bf16; empty is auto
	Context   int    // tokens, cap on every model's context; 0 = the model's own
	Memory    int64  // bytes of device memory to use; 0 = what the device has
	Threads   int    // 0 = all
	Level     string // instruction family to use instead of the best one; empty = the best

	// ParallelChunks lets the parts of one batch arrive in any order: a request waits
	// for the numbers before its own, for ParkFor at most. Off, the order of arrival is
	// the order.
	ParallelChunks bool
	ParkFor        time.Duration // 0 = 10 s

	OpenSamples int   // sample requests that may be open before clients are told to slow down; 0 = 20000
	OpenPrompts int64 // bytes of their prompts, 4 a token; 0 = 256 MiB

	OpenRequests int   // requests of one run that may wait before its client is told to slow down; 0 = 1000
	OpenBatches  int64 // bytes of training data of all requests that aren't done; 0 = 512 MiB

	DecodeShare float64 // of the device's time that sampling gets while training waits too; 0 = 0.5

	Embedded []Embedded // models that come with the program

	SessionIdle time.Duration // silence after which a session is abandoned; 0 = 10 minutes

	Log *slog.Logger     // slog.Default if nil
	Now func() time.Time // time.Now if nil
}

// sessionIdle is how long a client may be silent before its runs are unloaded.
// Clients send a heartbeat every 10 s, but a busy script can block it for minutes.
const sessionIdle = 10 * time.Minute

// Appliance is the machine.
type Appliance struct {
	opt     Options
	log     *slog.Logger
	now     func() time.Time
	started time.Time
	db      *store.DB
	dev     kernels.Device
	eng     *engine.Engine
	futures *futures
	record  *recorder
	traces  timelines
	losses  losses
	metered time.Time // until when storage was metered; the sweeper's

	wanted *base // by the latest request that asked for one: not to be dropped for it; the owner's

	loading sync.Mutex // held while a model is being loaded

	garbage atomic.Bool // there may be bytes that no record refers to

	keys   atomic.Pointer[[][sha256.Size]byte] // hashes of the keys, nil when they are to be read
	keysMu sync.Mutex                          // held while keys change or are read

	closing chan struct{} // closed when Close begins
	stop    context.CancelFunc
	wg      sync.WaitGroup

	mu       sync.Mutex // guards the maps; the values have locks of their own
	sessions map[string]*session
	runs     map[string]*run
	samplers map[string]*sampler
	bases    map[string]*base
	arriving string // the model that is being loaded, empty for none
	uploads  map[string]*upload
}

// Open opens or creates the store in the data folder and takes the device.
func Open(opt Options) (*Appliance, error) {
	a := &Appliance{opt: opt, log: opt.Log, now: opt.Now, closing: make(chan struct{}), futures: newFutures(),
		sessions: map[string]*session{}, runs: map[string]*run{}, samplers: map[string]*sampler{},
		bases: map[string]*base{}, uploads: map[string]*upload{}}
	if a.log == nil {
		a.log = slog.Default()
	}
	if a.now == nil {
		a.now = time.Now
	}
	if a.opt.ParkFor <= 0 {
		a.opt.ParkFor = parkFor
	}
	if a.opt.OpenSamples <= 0 {
		a.opt.OpenSamples = openSamples
	}
	if a.opt.OpenPrompts <= 0 {
		a.opt.OpenPrompts = openPrompts
	}
	if a.opt.OpenRequests <= 0 {
		a.opt.OpenRequests = openRequests
	}
	if a.opt.OpenBatches <= 0 {
		a.opt.OpenBatches = openBatches
	}
	if a.opt.SessionIdle <= 0 {
		a.opt.SessionIdle = sessionIdle
	}
	a.started = a.now()
	a.garbage.Store(true) // a crash may have left some
	if err := a.open(); err != nil {
		return nil, fmt.Errorf("open appliance in %s: %w", opt.Data, err)
	}
	return a, nil
}

func (a *Appliance) open() error {
	if a.opt.Data == "" {
		return errors.New("no data folder; name one with --data")
	}
	if a.opt.Context < 0 {
		return fmt.Errorf("context %d: give a number of tokens, or 0 for the model's own", a.opt.Context)
	}
	if s := a.opt.DecodeShare; !(s >= 0 && s < 1) {
		return fmt.Errorf("decode share %v: give a number above 0 and below 1", s)
	}
	if err := checkPrecision(a.opt.Precision); err != nil {
		return err
	}
	if err := os.MkdirAll(a.opt.Data, 0o700); err != nil {
		return err
	}
	var err error
	if a.dev, err = openDevice(a.opt); err != nil {
		return err
	}
	if a.db, err = store.Open(filepath.Join(a.opt.Data, "smolgym.db"), store.Options{Now: a.now}); err != nil {
		return errors.Join(err, a.dev.Close())
	}
	if err := os.RemoveAll(a.scratch()); err != nil {
		return errors.Join(err, a.db.Close(), a.dev.Close())
	}
	if err := a.loadSessions(); err != nil {
		return errors.Join(err, a.db.Close(), a.dev.Close())
	}
	if err := a.addEmbedded(); err != nil {
		return errors.Join(err, a.db.Close(), a.dev.Close())
	}
	a.eng = engine.New(a.dev, engine.Options{Context: a.opt.Context, DecodeShare: a.opt.DecodeShare})
	a.record = newRecorder(a.db, a.log)
	ctx, stop := context.WithCancel(context.Background())
	a.stop = stop
	a.wg.Go(func() { _ = a.eng.Run(ctx) }) // returns ctx's end
	a.wg.Go(func() { a.record.run(ctx) })
	a.wg.Go(func() { a.sweepLoop(ctx) })
	return nil
}

// Close ends all work and gives the device and the store up. Training state that
// was not saved is lost.
func (a *Appliance) Close() error {
	select {
	case <-a.closing:
		return nil
	default:
	}
	close(a.closing)
	a.stop()
	a.wg.Wait()
	a.loading.Lock() // a load that was under way has ended
	defer a.loading.Unlock()
	a.closeUploads()
	a.saveSpans()
	a.flushRuns()
	a.record.flush()
	return errors.Join(a.dev.Close(), a.db.Close())
}

// sweepEvery is how often what is out of date is looked for.
const sweepEvery = 10 * time.Second

func (a *Appliance) sweepLoop(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			a.sweep(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// sweep forgets results, ends abandoned sessions, deletes expired checkpoints and
// writes down what runs and sessions last did.
func (a *Appliance) sweep(ctx context.Context) {
	now := a.now()
	a.expireFutures(now.Add(-keepResults))
	a.sweepSessions(now)
	a.sweepRuns(now)
	a.sweepUploads(now)
	a.sweepPassing(ctx)
	a.meterStorage(now)
	a.flushRuns()
	a.record.flush()
	if _, err := a.db.TrimEvents(maxEvents); err != nil && ctx.Err() == nil {
		a.log.Error("trim events", "error", err)
	}
	n, err := a.db.SweepExpired(ctx, now)
	if err != nil && ctx.Err() == nil {
		a.log.Error("delete expired checkpoints", "error", err)
	}
	if n > 0 {
		a.garbage.Store(true)
	}
	a.collect(ctx)
	if _, err := a.db.SweepFutures(ctx, now.Add(-keepStored)); err != nil && ctx.Err() == nil {
		a.log.Error("delete old results", "error", err)
	}
}

// collect deletes bytes that no record refers to any more, if there may be some.
func (a *Appliance) collect(ctx context.Context) {
	if !a.garbage.Swap(false) {
		return
	}
	gone, err := a.db.Blobs().Collect(ctx, false)
	switch {
	case errors.Is(err, blob.ErrPinned), ctx.Err() != nil:
		a.garbage.Store(true) // next time
	case err != nil:
		a.log.Error("collect garbage", "error", err)
	case gone.Bytes > 0:
		a.log.Info("garbage collected", "blobs", gone.Blobs, "uploads", gone.Parts, "bytes", gone.Bytes)
	}
}

// keepStored is how long a small result can be fetched again, also after a restart.
const keepStored = 24 * time.Hour

// Status is what health checks and users want to know first.
type Status struct {
	Device      kernels.Info
	Precision   string // the policy; each model has its own
	Numerics    string
	Schema      int
	Started     time.Time
	Models      int
	Sessions    int
	RunsLive    int
	SamplersIn  int // with weights in device memory
	BasesLoaded int
	Queue       engine.QueueInfo
}

// Status describes the appliance now.
func (a *Appliance) Status() (Status, error) {
	models, err := a.db.Models()
	if err != nil {
		return Status{}, problemOf("list models", err)
	}
	s := Status{Device: because(a.opt.Device, a.eng.Device()), Precision: a.precision(), Numerics: fmt.Sprintf("%s v%d", a.eng.Device().Family, kernels.NumericsVersion), Schema: store.Schema, Started: a.started, Models: len(onlyModels(models)), Queue: a.eng.Queue()}
	a.mu.Lock()
	defer a.mu.Unlock()
	s.Sessions = len(a.sessions)
	s.BasesLoaded = len(a.bases)
	for _, r := range a.runs {
		if r.live() {
			s.RunsLive++
		}
	}
	for _, sm := range a.samplers {
		if sm.loaded() {
			s.SamplersIn++
		}
	}
	return s, nil
}

// Stats are the engine's counters.
func (a *Appliance) Stats() EngineStats { return a.eng.Stats() }

// numerics says by which rules a model's numbers are computed: results of equal
// strings are equal to the bit. The name may be that of a model that has gone.
func (a *Appliance) numerics(model string) string {
	matrices := ir.F32
	if m, err := a.model(model); err == nil {
		matrices = a.matrices(m)
	}
	return fmt.Sprintf("%s %s v%d", a.eng.Device().Family, precisionOf(matrices), kernels.NumericsVersion)
}
