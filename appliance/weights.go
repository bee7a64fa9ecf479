package appliance

import (
	"errors"
	"strings"

	"smolgym/model/export"
	"smolgym/model/gguf"
	"smolgym/model/hf"
	"smolgym/model/onnx"
	"smolgym/model/safetensors"
	"smolgym/store"
)

// The forms of an export.
const (
	FormAdapter = "adapter" // PEFT's folder
	FormMerged  = "merged"  // a folder like the base model's
	FormGGUF    = "gguf"    // one file
	FormONNX    = "onnx"    // one file, or two for a large model
)

// ExportOptions say in which form weights leave the box.
type ExportOptions struct {
	Form  string // empty: adapter for LoRA, merged for a full update
	DType string // f32, f16 or bf16, for gguf also q8_0, for onnx f32 only; empty: the form's own choice
	File  string // onnx: the file's name; empty: model.onnx
}

// Files is an export that is made while it is read.
type Files struct {
	Form string
	Plan *export.Plan

	release func()
}

// Close gives the hold on the checkpoint up.
func (f *Files) Close() { f.release() }

// Export plans the files of a checkpoint. The checkpoint's bytes stay until the
// caller closes what is returned.
func (a *Appliance) Export(path string, o ExportOptions) (*Files, error) {
	cp, err := a.Checkpoint(path)
	if err != nil {
		return nil, err
	}
	if cp.Kind == store.KindExternal {
		return nil, Problemf(CodeUser, "checkpoint %s is an export already", path).WithHint("export one of kind weights or sampler_weights")
	}
	if o.Form == "" {
		o.Form = FormAdapter
		if cp.Full {
			o.Form = FormMerged
		}
	}
	held, err := a.hold(cp, false)
	if err != nil {
		return nil, problemOf("export "+path, err)
	}
	plan, err := a.planForm(cp, o)
	if err != nil {
		a.letGo(held)
		return nil, problemOf("export "+path, err)
	}
	return &Files{Form: o.Form, Plan: plan, release: func() { a.letGo(held) }}, nil
}

// ExportModel plans the files of a stored model as it is. Form onnx is the one there is.
func (a *Appliance) ExportModel(name string, o ExportOptions) (*Files, error) {
	if o.Form != FormONNX {
		return nil, Problemf(CodeUser, "form %q: there is none of a model", clip(o.Form)).WithHint("give onnx; other forms are of checkpoints")
	}
	m, err := a.model(name)
	if err != nil {
		return nil, err
	}
	src, err := a.folder(m.Files)
	if err != nil {
		return nil, exportProblem(m.Name, err)
	}
	plan, err := planONNX(m.Name, src, export.Weights{}, o)
	if err != nil {
		return nil, err
	}
	return &Files{Form: o.Form, Plan: plan, release: func() {}}, nil
}

// planONNX refuses what the form can't hold.
func planONNX(model string, src hf.Source, w export.Weights, o ExportOptions) (*export.Plan, error) {
	switch {
	case o.DType != "" && !strings.EqualFold(o.DType, "f32"):
		return nil, Problemf(CodeUser, "dtype %q: an ONNX file has f32", clip(o.DType)).WithHint("leave dtype out")
	case o.File != "" && (hf.CheckName(o.File) != nil || !strings.HasSuffix(o.File, ".onnx")):
		return nil, Problemf(CodeUser, "file name %q: give a plain name that ends in .onnx", clip(o.File))
	}
	plan, err := export.ONNX(src, w, export.ONNXOptions{File: o.File})
	if errors.Is(err, onnx.ErrUnsupported) {
		return nil, Problemf(CodeUnsupported, "model %s: %v", model, err).Because(err)
	}
	return plan, exportProblem(model, err)
}

// planForm says which files there will be.
func (a *Appliance) planForm(cp store.Checkpoint, o ExportOptions) (*export.Plan, error) {
	m, err := a.model(cp.BaseModel)
	if err != nil {
		return nil, err
	}
	w, err := a.trained(cp)
	if err != nil {
		return nil, exportProblem(m.Name, err)
	}
	src, err := a.folder(m.Files)
	if err != nil {
		return nil, exportProblem(m.Name, err)
	}
	dtype := safetensors.DType(strings.ToUpper(o.DType))
	if o.Form != FormGGUF && o.Form != FormONNX && dtype != "" && !dtype.IsWeight() {
		return nil, Problemf(CodeUser, "dtype %q: give f32, f16 or bf16", clip(o.DType))
	}
	var plan *export.Plan
	switch o.Form {
	case FormAdapter:
		if cp.Full {
			return nil, Problemf(CodeUnsupported, "checkpoint %s is a full update and has no adapter", cp.Path()).WithHint("export it with form merged or gguf")
		}
		plan, err = export.Adapter(src, w.Adapters, export.AdapterOptions{BaseModel: m.Name, DType: dtype})
	case FormMerged:
		plan, err = export.Merged(src, w, export.MergedOptions{DType: dtype})
	case FormGGUF:
		kind := gguf.F16
		if o.DType != "" {
			if kind, err = gguf.ParseType(o.DType); err != nil {
				return nil, Problemf(CodeUser, "dtype %q: give f32, f16, bf16 or q8_0", clip(o.DType)).Because(err)
			}
		}
		_, short, _ := strings.Cut(m.Name, "/")
		plan, err = export.GGUF(src, w, export.GGUFOptions{Name: short + "-" + cp.Name, Type: kind})
		if errors.Is(err, gguf.ErrUnsupported) {
			return nil, Problemf(CodeUnsupported, "%v", err).Because(err)
		}
	case FormONNX:
		return planONNX(m.Name, src, w, o)
	default:
		return nil, Problemf(CodeUser, "form %q: there is none", clip(o.Form)).WithHint("give adapter, merged, gguf or onnx")
	}
	return plan, exportProblem(m.Name, err)
}

// trained is what a checkpoint holds, in the terms of package export.
func (a *Appliance) trained(cp store.Checkpoint) (w export.Weights, err error) {
	tensors := make([]export.Tensor, len(cp.Tensors))
	for i, t := range cp.Tensors {
		tensors[i] = export.Tensor{Name: t.Name, Shape: t.Shape, Open: func() (hf.ReaderAtSized, error) { return a.openTensor(t) }}
	}
	if cp.Full {
		w.Full = tensors
		return w, nil
	}
	w.Adapters, err = export.Pair(tensors, cp.Alpha)
	return w, err
}
