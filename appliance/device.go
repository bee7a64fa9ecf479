package appliance

import (
	"fmt"
	"strings"

	"smolgym/kernels"
	"smolgym/kernels/cpu"
	"smolgym/kernels/reference"
	"smolgym/model/ir"
	"smolgym/model/safetensors"
	"smolgym/store"
)

// checkPrecision refuses what has no kernels yet.
func checkPrecision(precision string) error {
	switch precision {
	case "", "auto", "fp32", "bf16":
		return nil
	case "fp16":
		return Problemf(CodeUnsupported, "precision fp16: fp16 arithmetic is for CUDA devices, which this version doesn't have").
			WithHint("use --precision auto, bf16 or fp32")
	}
	return Problemf(CodeUser, "precision %q is unknown", clip(precision)).WithHint("use auto, fp32, bf16 or fp16")
}

// bf16From is the number of parameters from which a model's matrices are bf16 when
// the precision is auto: smaller models take little time and memory either way.
const bf16From = 20_000_000

// matrices is the type of a model's matrices in device memory. With auto they are
// bf16 where that is faster and what most weights are stored in.
func (a *Appliance) matrices(m store.Model) ir.DType {
	auto := a.opt.Precision == "" || a.opt.Precision == "auto"
	if a.opt.Precision == "bf16" || auto && a.eng.Device().BF16 && m.Parameters >= bf16From && strings.HasPrefix(m.DType, string(safetensors.BF16)) {
		return ir.BF16
	}
	return ir.F32
}

// precision is the policy in a word or in words.
func (a *Appliance) precision() string {
	switch p := a.opt.Precision; {
	case p != "" && p != "auto":
		return p
	case a.eng.Device().BF16:
		return fmt.Sprintf("auto: bf16 for models of %d M parameters and more that are stored in it, else fp32", bf16From/1_000_000)
	}
	return "fp32"
}

// precisionOf names what products are computed in; sums are fp32 in both.
func precisionOf(matrices ir.DType) string {
	if matrices == ir.BF16 {
		return "bf16"
	}
	return "fp32"
}

// checkDevice refuses what can't be opened by this version.
func checkDevice(device string) error {
	switch {
	case device == "", device == "auto", device == "cpu", device == "reference":
		return nil
	case device == "cuda", strings.HasPrefix(device, "cuda:"):
		return Problemf(CodeUnsupported, "device %s: this build has no CUDA device", clip(device)).WithHint("use --device cpu or auto")
	}
	return Problemf(CodeUser, "device %q is unknown", clip(device)).WithHint("use auto, cpu, cuda or cuda:N")
}

// openDevice opens what computes. The reference device is the slow oracle that all
// others are tested against: for tests and for telling whose fault a number is.
func openDevice(opt Options) (kernels.Device, error) {
	if err := checkDevice(opt.Device); err != nil {
		return nil, err
	}
	if opt.Device != "reference" {
		return cpu.Open(cpu.Options{Threads: opt.Threads, Level: opt.Level, MemoryBytes: opt.Memory})
	}
	memory := opt.Memory
	if memory <= 0 {
		memory = referenceMemory
	}
	return reference.Open(reference.Options{MemoryBytes: memory}), nil
}

// because puts why a device was chosen before why it computes as it does.
func because(device string, info kernels.Info) kernels.Info {
	why := "asked for by name"
	if device == "" || device == "auto" {
		why = "auto: this build has no CUDA device"
	}
	info.Why = why + "; " + info.Why
	return info
}

// referenceMemory is what the reference device may use, in bytes, when nothing is said.
const referenceMemory = 8 << 30
