package appliance

import (
	"strings"

	"smolgym/kernels"
	"smolgym/kernels/cpu"
	"smolgym/kernels/reference"
)

// checkPrecision refuses what has no kernels yet.
func checkPrecision(precision, device string) error {
	switch precision {
	case "", "auto", "fp32":
		return nil
	case "bf16":
		return Problemf(CodeUnsupported, "precision bf16: the CPU device of this version computes in fp32 only; checkpoints in bf16 are widened exactly").
			WithHint("use --precision fp32 or auto")
	case "fp16":
		return Problemf(CodeUnsupported, "precision fp16: fp16 arithmetic is for CUDA devices, which this version doesn't have").
			WithHint("use --precision fp32 or auto")
	}
	return Problemf(CodeUser, "precision %q is unknown", clip(precision)).WithHint("use auto, fp32, bf16 or fp16")
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
