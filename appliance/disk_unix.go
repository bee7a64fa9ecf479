//go:build linux || darwin

package appliance

import "syscall"

// freeBytes is what the folder's file system has left for us, -1 if it can't be told.
func freeBytes(folder string) int64 {
	var st syscall.Statfs_t
	if err := syscall.Statfs(folder, &st); err != nil {
		return -1
	}
	return int64(st.Bavail) * int64(st.Bsize)
}
