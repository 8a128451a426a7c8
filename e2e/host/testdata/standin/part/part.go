// Package part is imported by its full path, as a plugin's own packages are.
package part

// Double returns s twice.
func Double(s string) string { return s + s }
