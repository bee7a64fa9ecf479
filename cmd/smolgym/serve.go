package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"smolgym/appliance"
	"smolgym/appliance/rack"
	"smolgym/httpapi"
	"smolgym/httpapi/hub"
)

type serveFlags struct {
	addr, memory, tlsCert, tlsKey string
	opt                           appliance.Options
	api                           httpapi.Options
}

func newServe() *cobra.Command {
	var f serveFlags
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "serve models on this machine",
		Long: `Opens the data folder, takes the device and answers the Tinker API until it is
interrupted. Everything a user could lose is in one file, DATA/smolgym.db.`,
		Example: "smolgym serve\nsmolgym serve --addr 127.0.0.1:9000 --data ./my-data --context 2048",
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context(), cmd.OutOrStdout()) },
	}
	fl := cmd.Flags()
	fl.StringVar(&f.addr, "addr", "127.0.0.1:8080", "address to listen on; port 0 takes a free one")
	fl.StringVar(&f.opt.Data, "data", "./smolgym-data", "data folder, made if it isn't there")
	fl.StringVar(&f.opt.Device, "device", "auto", "auto, cpu, cuda or cuda:N")
	fl.StringVar(&f.opt.Precision, "precision", "auto", "of matrix products: auto, fp32 or bf16 (fp16 is for CUDA)")
	fl.IntVar(&f.opt.Context, "context", 0, "cap on every model's context, in tokens (0: the model's own)")
	fl.StringVar(&f.memory, "memory", "", "device memory to use, such as 8GiB (default: what is free)")
	fl.IntVar(&f.opt.Threads, "threads", 0, "CPU threads (0: all processors; never changes a result)")
	fl.StringVar(&f.opt.Level, "cpu-level", "auto", "auto, amx, avx512bf16, avx512, avx2, neon or portable, which compute the same bits but for bf16 products on amx; amx-avx2 has those of amx")
	fl.Float64Var(&f.opt.DecodeShare, "decode-share", 0.5, "share of the device's time that sampling gets while training waits too")
	fl.BoolVar(&f.opt.ParallelChunks, "parallel-chunks", false, "let clients send the parts of one batch at once; a part waits 10 s for those before it")
	fl.BoolVar(&f.api.PlainKeys, "plain-keys", false, "let clients send their key with every request instead of a token that expires (they can't say whoami then)")
	fl.BoolVar(&f.api.ClientLosses, "client-losses", false, "leave losses that the SDK traces to the script instead of running them here")
	fl.StringVar(&f.tlsCert, "tls-cert", "", "certificate file, to serve https")
	fl.StringVar(&f.tlsKey, "tls-key", "", "key file of the certificate")
	fl.StringVar(&f.api.Upstream, "hub-upstream", hub.DefaultUpstream, "hub that is asked about what isn't here (empty: none)")
	return cmd
}

// parseBytes reads a size such as 512MiB, 8GB or 1000000.
func parseBytes(s string) (int64, error) {
	units := []struct {
		suffix string
		factor float64
	}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"B", 1}, {"", 1}}
	for _, u := range units {
		number, ok := strings.CutSuffix(s, u.suffix)
		if !ok {
			continue
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		if err != nil || !(v > 0) || v*u.factor > 1<<50 {
			break
		}
		return int64(v * u.factor), nil
	}
	return 0, usagef("--memory %q: give a size such as 8GiB or 500MB", s)
}

// checkAddr says whether others can reach an address; one that they can is refused
// unless the data folder has a key.
func checkAddr(addr, data string) (public bool, err error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false, usagef("--addr %q: give HOST:PORT, such as 127.0.0.1:8080: %w", addr, err)
	}
	if ip := net.ParseIP(host); host == "localhost" || (ip != nil && ip.IsLoopback()) {
		return false, nil
	}
	has, err := hasKey(data)
	var e *exitError
	if err != nil && !(errors.As(err, &e) && e.code == exitNotFound) {
		return true, err
	}
	if has {
		return true, nil
	}
	return true, &exitError{code: exitNotAllowed, hint: "make a key first: smolgym key create --data " + data + "; or listen on 127.0.0.1 and reach it through an SSH tunnel",
		err: fmt.Errorf("--addr %s: an address that others can reach is refused while there is no key to keep them out", addr)}
}

func (f *serveFlags) run(ctx context.Context, out io.Writer) error {
	public, err := checkAddr(f.addr, f.opt.Data)
	if err != nil {
		return err
	}
	if (f.tlsCert == "") != (f.tlsKey == "") {
		return usagef("--tls-cert and --tls-key come together")
	}
	if s := f.opt.DecodeShare; !(s > 0 && s < 1) {
		return usagef("--decode-share %v: give a number above 0 and below 1, such as 0.5", s)
	}
	if f.memory != "" {
		if f.opt.Memory, err = parseBytes(f.memory); err != nil {
			return err
		}
	}
	if public && f.tlsCert == "" {
		fmt.Fprintln(os.Stderr, "warning: keys and data cross the network in the clear; serve https with --tls-cert and --tls-key")
	}
	f.opt.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	listener, err := net.Listen("tcp", f.addr)
	if err != nil {
		return &exitError{code: exitFailed, hint: "choose another port with --addr 127.0.0.1:PORT", err: err}
	}
	f.opt.Embedded = []appliance.Embedded{{Name: rack.Name, Files: rack.Small()}}
	app, err := appliance.Open(f.opt)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	f.api.Version, f.api.NeedKey = version, public
	api := httpapi.New(app, f.api)
	server := &http.Server{
		Handler:           api,
		ReadHeaderTimeout: 20 * time.Second,
		IdleTimeout:       5 * time.Minute,
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	if err := f.banner(out, app, listener.Addr().String()); err != nil {
		return errors.Join(err, api.Close(), app.Close(), listener.Close())
	}
	failed := make(chan error, 1)
	go func() {
		if f.tlsCert != "" {
			failed <- server.ServeTLS(listener, f.tlsCert, f.tlsKey)
		} else {
			failed <- server.Serve(listener)
		}
	}()
	select {
	case err = <-failed:
	case <-ctx.Done():
		stop() // a second interrupt ends the process at once
		fmt.Fprintln(os.Stderr, "stopping; what was saved stays in", f.opt.Data)
		grace, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err = server.Shutdown(grace); errors.Is(err, context.DeadlineExceeded) {
			err = server.Close()
		}
	}
	return errors.Join(err, api.Close(), app.Close())
}

// banner says what the server is, where, and what to paste.
func (f *serveFlags) banner(out io.Writer, app *appliance.Appliance, addr string) error {
	s, err := app.Status()
	if err != nil {
		return err
	}
	models, err := app.Models()
	if err != nil {
		return err
	}
	scheme := "http"
	if f.tlsCert != "" {
		scheme = "https"
	}
	d := s.Device
	fmt.Fprintf(out, "smolgym %s on %s://%s\n", version, scheme, addr)
	fmt.Fprintf(out, "  data    %s\n", f.opt.Data)
	fmt.Fprintf(out, "  device  %s: %s, %s, %d threads (%s)\n", d.Kind, d.Name, d.Family, d.Threads, d.Why)
	fmt.Fprintf(out, "  numbers %s\n", s.Precision)
	fmt.Fprintf(out, "  memory  %.1f GiB free for models\n", float64(d.FreeBytes)/(1<<30))
	if len(models) == 0 {
		fmt.Fprintf(out, "  models  none yet: smolgym model add NAME FOLDER\n")
	}
	for i, m := range models {
		label := ""
		if i == 0 {
			label = "models"
		}
		fmt.Fprintf(out, "  %-7s %s (%s, %.1f M parameters)\n", label, m.Name, m.Family, float64(m.Parameters)/1e6)
	}
	keys, err := app.Keys()
	if err != nil {
		return err
	}
	key := "tml-local"
	if len(keys) > 0 {
		key = "tml-…    # one of the keys that were made: " + counted(len(keys), "key")
	}
	_, err = fmt.Fprintf(out, "\nPoint a script at it:\n  export TINKER_BASE_URL=%[1]s://%[2]s\n  export TINKER_API_KEY=%[3]s\n"+
		"  export HF_ENDPOINT=%[1]s://%[2]s    # optional: tokenizers, configs and weights by their names here, also hf upload\n", scheme, addr, key)
	return err
}
