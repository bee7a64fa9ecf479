//go:build !linux && !darwin

package appliance

func freeBytes(string) int64 { return -1 }
