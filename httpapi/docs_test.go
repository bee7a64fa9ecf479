package httpapi

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the pages that tests generate")

// wirePage is what the page says of each route of the wire, by method and path.
var wirePage = []struct {
	title, about string
	routes       [][3]string
}{
	{"Connection", "", [][3]string{
		{"GET /healthz", "`status`, version, device, precision; the same at the root; no key needed", ""},
		{"GET /get_server_capabilities", "every model on the box with its context, trainable and sampleable", ""},
		{"POST /client/config", "settings that make a client send the parts of a batch in order (at once with `serve --parallel-chunks`: a part then waits up to 10 s for the numbers before it, and fails if one doesn't come), compress batches unless they are on this machine, wait with one poll per sampler, join samplers, exchange its key for a token and send traced losses here", ""},
		{"POST /client/dynamic_config", "cancelling on", ""},
		{"POST /auth/token", "a token (HS256, 12 hours) for the key in `X-API-Key`; it says who asks: `tml:user:local` of `local`. A token that has expired or whose key is gone is a 401 with `error=\"invalid_token\"`, and clients fetch another. Off with `Options.PlainKeys`: then `whoami` fails in the client", "a token instead of a key"},
		{"GET /auth/apikey/me", "the owner, for `tinker auth login`", ""},
		{"DELETE /auth/apikey/me", "accepted; keys are made and deleted on the box", ""},
		{"POST /telemetry", "accepted and thrown away: events may hold keys and file paths", ""},
	}},
	{"Sessions", "", [][3]string{
		{"POST /create_session", "a session, with its tags, metadata, project and display name", ""},
		{"POST /session_heartbeat", "accepted; 410 once the session has ended", ""},
		{"POST /sessions/:id/finish", "ends the session; the first reason wins", "reasons other than success, errored and interrupted"},
		{"GET /sessions", "ids, newest first", ""},
		{"GET /sessions/:id", "its runs and samplers, metadata and name", ""},
		{"POST /sessions/search", "by id or name, project, metadata and status, newest first, with a cursor. No session here is `cancelled` or `failed`", "a limit beyond 200"},
		{"PUT /sessions/:id/project", "moves the session; any project may be named", ""},
		{"GET /sessions/:id/trace_export", "`ready` with a URL that needs no key for an hour", ""},
		{"GET /traces/:id", "what that URL leads to: the session's latest 16,384 spans as trace events for Perfetto: queue, forward, backward, optimizer, sample, save. They end with the process", "a changed or expired URL"},
	}},
	{"Training", "Numbers of a run rise; repeats are answered from the first. What is accepted is a future; its failure is an answer with a category.", [][3]string{
		{"POST /create_model", "f→ a run: a LoRA of the modules asked for, or every parameter when `lora_config` is absent or its rank 0", "optimizers other than adamw"},
		{"POST /get_info", "what the run is of", ""},
		{"POST /forward_backward", "f→ log-probabilities and metrics; adds to the gradient unless forward only. Losses: cross_entropy (also several targets a position), importance_sampling, ppo, cispo, dro, gspo, and custom with a `loss_id`. Clip thresholds may be tensors. 429 while 1,000 requests of the run wait or those of all runs hold 512 MiB of data", "stable_reinforce, images, audio: by name, category user; bodies over 64 MiB"},
		{"POST /create_custom_loss", "f→ `loss_id` of a traced loss for the session's runs, at most 256; it ends with the session and the process. The graph is data, and its work is bounded", "graphs with operations that aren't done here, with the list of them; pass the plain function instead"},
		{"POST /optim_step", "f→ AdamW; metrics `grad_norm`, `lr`, `step`", "other optimizers"},
		{"POST /save_weights", "f→ a checkpoint with optimizer state", "a name that is taken, unless overwriting"},
		{"POST /save_weights_for_sampler", "f→ a checkpoint to sample from, or, unnamed, a sampler of the weights at this point", ""},
		{"POST /save_weights_external", "f→ an export: `adapter_config.json` and `adapter_model.safetensors`, or the whole model for a full update; encrypted with age to at most 10 recipients when asked. One of the same name is replaced", "recipients that are neither age nor SSH public keys"},
		{"POST /load_weights", "f→ into a run at any time, or as creation of one; a run made so takes device memory when its first request needs it", "a checkpoint of another model or rank; exports"},
		{"POST /copy_weights", "the copy's path: a new run, which can't be trained, shares the bytes", ""},
		{"POST /unload_model", "f→ ends a run; older clients send it", ""},
		{"POST /retrieve_future", "the result, or 408 after 30 seconds", ""},
		{"POST /retrieve_futures", "what has finished or failed for one sampler and clone since a cursor that rises, also over a restart; held up to 30 s, not at all with `timeout` 0. `prev_cursor` acknowledges, `retrieved_request_ids` frees results. After a restart it also names what was open before: fetching that is a 410, and clients ask again", "a sampler that never was (404) or whose weights are gone for good (410)"},
		{"POST /cancel_future", "a sample that waits or is being decoded ends as a failure and gives its memory back; anything else is accepted and left alone", ""},
	}},
	{"Sampling", "", [][3]string{
		{"POST /create_sampling_session", "a sampler of a model or of a checkpoint", "exports; models and checkpoints that aren't there"},
		{"POST /join_sampling_session", "a number for a client that got the sampler from another process, never given twice, also not after a restart", ""},
		{"GET /samplers/:id", "its model and checkpoint", ""},
		{"POST /asample", "f→ samples with their log-probabilities, those of the prompt (the last n from the prefix cache), of given targets (dense or CSR, answered alike) and the best tokens when asked, and draws at every prompt position. 429 while 20,000 requests are open or their prompts have 67 million tokens (256 MiB)", "images, audio; a prompt longer than the context; more than 256 best tokens or draws a position; more than 4,194,304 target cells or draws a prompt"},
	}},
	{"Records", "One owner sees everything: access scopes are accepted and the same.", [][3]string{
		{"GET /training_runs", "newest first, by project when asked. A run that was only made to export a checkpoint is left out, and deleted when its export is gone", ""},
		{"GET /training_runs/:run", "one run with its latest checkpoints", ""},
		{"GET /training_runs/:run/checkpoints", "all of them, newest first", ""},
		{"GET /checkpoints", "those of all runs, newest first", ""},
		{"DELETE /training_runs/:run/checkpoints/:kind/:name", "deletes; again is fine", "one of a run that never was"},
		{"POST /training_runs/:run/checkpoints/:kind/:name/publish", "sets the flag that lists show", ""},
		{"DELETE /training_runs/:run/checkpoints/:kind/:name/publish", "clears it", ""},
		{"PUT /training_runs/:run/checkpoints/:kind/:name/ttl", "expires that long from now, or never with null", "less than an hour, more than ten years"},
		{"GET /training_runs/:run/checkpoints/:kind/:name/external_weights_urls", "a URL for each file of an export, that needs no key for an hour, on the host of the request (or `X-Forwarded-Host`, `-Proto`, `-Prefix`)", "checkpoints that aren't exports"},
		{"GET /external/:run/:name/*file", "what those URLs lead to, with its length, ranges and an ETag", "a changed or expired URL"},
		{"HEAD /external/:run/:name/*file", "the same without the bytes", ""},
		{"POST /weights_info", "model, rank and parts of a checkpoint", ""},
	}},
	{"Administration", "", [][3]string{
		{"GET /audit", "what was done to checkpoints and projects on a day (UTC), the latest 100,000 events in all: `checkpoint_create`, `_read`, `_copy`, `_delete`, `_publish`, `_unpublish`, `_set_ttl`, `project_assign_session`. Teams and organizations have none", "other event types"},
		{"GET /billing/usage/events", "tokens trained, prefilled and sampled, checkpoints made and gigabyte-hours stored, by hour, model and session, at the price 0", "windows over 31 days"},
		{"GET /billing/usage/checkpoints/current", "checkpoints and their bytes by project", ""},
	}},
}

// docs/wire.md lists every route of the wire and nothing else: -update rewrites it.
func TestWirePage(t *testing.T) {
	r := newRig(t, Options{})
	s := &server{box: r.box}
	missing := map[string]bool{}
	for _, route := range s.router().Routes() {
		if path, ok := strings.CutPrefix(route.Path, "/api/v1"); ok {
			missing[route.Method+" "+path] = true
		}
	}
	var b bytes.Buffer
	b.WriteString("# The Tinker wire\n\nGenerated from the route table by `go test ./httpapi -run WirePage -update`; the test fails when a route is missing.\n" +
		"Paths are below `/api/v1`. f→ marks a future: the answer is fetched by `retrieve_future`.\n")
	for _, group := range wirePage {
		fmt.Fprintf(&b, "\n## %s\n\n", group.title)
		if group.about != "" {
			fmt.Fprintf(&b, "%s\n\n", group.about)
		}
		b.WriteString("| route | answer | refused |\n| --- | --- | --- |\n")
		for _, row := range group.routes {
			if !missing[row[0]] {
				t.Errorf("the page has %s, the server doesn't (or the page has it twice)", row[0])
			}
			delete(missing, row[0])
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", row[0], row[1], row[2])
		}
	}
	for _, route := range slices.Sorted(maps.Keys(missing)) {
		t.Errorf("route %s is missing from the page: add it to wirePage", route)
	}
	path := filepath.Join("..", "docs", "wire.md")
	if *update {
		if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, b.Bytes()) {
		t.Error("docs/wire.md is not what the table says: run go test ./httpapi -run WirePage -update")
	}
}
