package hub

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"smolgym/appliance"
)

// permitFor is how long an address that a large file is sent to stays good.
const permitFor = 24 * time.Hour

// permit signs an object's address: clients send no token there.
func (h *Handler) permit(oid string, size, until int64) string {
	mac := hmac.New(sha256.New, h.secret[:])
	fmt.Fprintf(mac, "lfs %s %d %d", oid, size, until)
	return fmt.Sprintf("%d-%d-%s", size, until, hex.EncodeToString(mac.Sum(nil)))
}

// permitted reads a permit and says how large the object is.
func (h *Handler) permitted(oid, permit string) (size int64, err error) {
	parts := strings.Split(permit, "-")
	if len(parts) == 3 && isSum(oid) {
		size, err1 := strconv.ParseInt(parts[0], 10, 64)
		until, err2 := strconv.ParseInt(parts[1], 10, 64)
		if err1 == nil && err2 == nil && h.opt.Now().Unix() < until && hmac.Equal([]byte(permit), []byte(h.permit(oid, size, until))) {
			return size, nil
		}
	}
	return 0, failf(http.StatusForbidden, "", "the address is not one that this server gave for the object, or it is too old; start the upload again: what was sent is kept")
}

// serveLFS serves /org/name.git/info/lfs/…
func (h *Handler) serveLFS(w http.ResponseWriter, r *http.Request, org, name string, p []string) error {
	repo := org + "/" + name
	switch {
	case r.Method == "POST" && slices.Equal(p, []string{"objects", "batch"}):
		return h.lfsBatch(w, r, repo)
	case r.Method == "POST" && slices.Equal(p, []string{"verify"}), r.Method == "POST" && slices.Equal(p, []string{"objects", "verify"}):
		return h.lfsVerify(w, r)
	case r.Method == "PUT" && len(p) == 3 && p[0] == "objects":
		return h.lfsPut(w, r, p[1], p[2], 0)
	case r.Method == "PUT" && len(p) == 5 && p[0] == "objects" && p[3] == "part":
		n, err := strconv.ParseInt(p[4], 10, 32)
		if err != nil || n < 1 {
			return failf(http.StatusBadRequest, "", "part %.40q: want a number from 1 on", p[4])
		}
		return h.lfsPut(w, r, p[1], p[2], n)
	case r.Method == "POST" && len(p) == 4 && p[0] == "objects" && p[3] == "complete":
		return h.lfsComplete(w, r, p[1], p[2])
	}
	return noRoute(r)
}

type lfsObject struct {
	OID           string         `json:"oid"`
	Size          int64          `json:"size"`
	Authenticated bool           `json:"authenticated,omitempty"`
	Actions       map[string]any `json:"actions,omitempty"`
	Error         *lfsError      `json:"error,omitempty"`
}

type lfsError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

// maxObjectBytes bounds one large file.
const maxObjectBytes = 4 << 40

// lfsBatch says where objects are to be sent. For one that is here already there is nothing to do.
func (h *Handler) lfsBatch(w http.ResponseWriter, r *http.Request, repo string) error {
	var req struct {
		Operation string      `json:"operation"`
		Transfers []string    `json:"transfers"`
		Objects   []lfsObject `json:"objects"`
		HashAlgo  string      `json:"hash_algo"`
	}
	if err := h.mayWrite(r); err != nil {
		return err
	}
	if err := decode(w, r, maxManifest, &req); err != nil {
		return err
	}
	if req.Operation != "upload" || req.HashAlgo != "" && req.HashAlgo != "sha256" {
		return failf(http.StatusBadRequest, "", "git-lfs operation %.40q, hash %.40q: only upload with sha256 is served; download by resolve", req.Operation, req.HashAlgo)
	}
	if _, err := h.openOwn(repo); err != nil {
		return err
	}
	// One answer speaks of one way to send. Parts are for what is too large for one request.
	multipart := slices.Contains(req.Transfers, "multipart") && slices.ContainsFunc(req.Objects, func(o lfsObject) bool { return o.Size > h.opt.MultipartBytes })
	transfer := "basic"
	if multipart {
		transfer = "multipart"
	}
	until := h.opt.Now().Add(permitFor).Unix()
	objects := []lfsObject{}
	for _, o := range req.Objects {
		out := lfsObject{OID: o.OID, Size: o.Size, Authenticated: true}
		if !isSum(o.OID) || o.Size < 0 || o.Size > maxObjectBytes {
			out.Error = &lfsError{http.StatusUnprocessableEntity, fmt.Sprintf("object %.80q of %d bytes: want a sha256 in 64 hexadecimal digits and at most %d bytes", o.OID, o.Size, int64(maxObjectBytes))}
			objects = append(objects, out)
			continue
		}
		have, size, err := h.box.ContentState(o.OID)
		if err != nil && !isNotFound(err) {
			return err
		}
		if err != nil || have < size || size != o.Size {
			out.Actions = h.lfsActions(base(r)+"/"+repo+".git/info/lfs", o, until, multipart && o.Size > h.opt.MultipartBytes)
		}
		objects = append(objects, out)
	}
	w.Header().Set("Content-Type", "application/vnd.git-lfs+json")
	answer(w, r, http.StatusOK, map[string]any{"transfer": transfer, "objects": objects, "hash_algo": "sha256"})
	return nil
}

func (h *Handler) lfsActions(root string, o lfsObject, until int64, multipart bool) map[string]any {
	href := root + "/objects/" + o.OID + "/" + h.permit(o.OID, o.Size, until)
	upload := map[string]any{"href": href}
	if multipart {
		head := map[string]string{"chunk_size": strconv.FormatInt(h.opt.MultipartBytes, 10)}
		for n, at := 1, int64(0); at < o.Size; n, at = n+1, at+h.opt.MultipartBytes {
			head[strconv.Itoa(n)] = href + "/part/" + strconv.Itoa(n)
		}
		upload = map[string]any{"href": href + "/complete", "header": head}
	}
	return map[string]any{"upload": upload, "verify": map[string]any{"href": root + "/verify", "header": map[string]string{}}}
}

// lfsPut takes an object, or its n-th part; parts come in order. What arrived before a connection broke is kept, and
// sent once more it is read past.
func (h *Handler) lfsPut(w http.ResponseWriter, r *http.Request, oid, permit string, n int64) error {
	size, err := h.permitted(oid, permit)
	if err != nil {
		return err
	}
	offset, end := int64(0), size
	if n > 0 {
		if n-1 > size/h.opt.MultipartBytes {
			return failf(http.StatusBadRequest, "", "object %s has no part %d", oid, n)
		}
		offset = (n - 1) * h.opt.MultipartBytes
		end = min(size, offset+h.opt.MultipartBytes)
	}
	if r.ContentLength >= 0 && r.ContentLength != end-offset {
		return failf(http.StatusBadRequest, "", "object %s: %d bytes are sent where %d are due", oid, r.ContentLength, end-offset)
	}
	have, err := h.box.PutContent(oid, size, offset, appliance.FromClient(io.LimitReader(r.Body, end-offset)))
	if err != nil {
		return err
	}
	if have < end {
		return failf(http.StatusBadRequest, "", "object %s: the request ended at byte %d of %d", oid, have, end)
	}
	w.Header().Set("ETag", fmt.Sprintf("%q", fmt.Sprintf("%s-%d", oid[:16], n)))
	answer(w, r, http.StatusOK, struct{}{})
	return nil
}

func (h *Handler) lfsComplete(w http.ResponseWriter, r *http.Request, oid, permit string) error {
	size, err := h.permitted(oid, permit)
	if err != nil {
		return err
	}
	have, all, err := h.box.ContentState(oid)
	if err != nil && !isNotFound(err) {
		return err
	}
	if err != nil || have < all || all != size {
		return failf(http.StatusBadRequest, "", "object %s: %d of %d bytes are here; send the missing parts", oid, have, size)
	}
	answer(w, r, http.StatusOK, struct{}{})
	return nil
}

func (h *Handler) lfsVerify(w http.ResponseWriter, r *http.Request) error {
	var o lfsObject
	if err := h.mayWrite(r); err != nil {
		return err
	}
	if err := decode(w, r, maxJSON, &o); err != nil {
		return err
	}
	if !isSum(o.OID) {
		return failf(http.StatusUnprocessableEntity, "", "object %.80q: not a sha256", o.OID)
	}
	have, size, err := h.box.ContentState(o.OID)
	switch {
	case isNotFound(err), err == nil && (have < size || size != o.Size):
		return failf(http.StatusNotFound, codeEntry, "object %s of %d bytes is not here; send it again", o.OID, o.Size)
	case err != nil:
		return err
	}
	answer(w, r, http.StatusOK, map[string]string{"message": "ok"})
	return nil
}
