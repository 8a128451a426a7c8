package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// packages returns the npm packages that the lock file in a folder names.
func packages(folder string) ([]library, error) {
	text, err := os.ReadFile(filepath.Join(folder, "package-lock.json"))
	if err != nil {
		return nil, err
	}
	var lock struct {
		Version  int `json:"lockfileVersion"`
		Packages map[string]struct {
			Version string `json:"version"`
			Licence string `json:"license"`
		} `json:"packages"`
	}
	if err := json.Unmarshal(text, &lock); err != nil {
		return nil, err
	}
	if lock.Version < 2 {
		return nil, fmt.Errorf("package-lock.json has the form %d, which names no licences", lock.Version)
	}
	var libraries []library
	for _, path := range slices.Sorted(maps.Keys(lock.Packages)) {
		if path == "" {
			continue // the folder itself
		}
		p := lock.Packages[path]
		name := path[strings.LastIndex(path, "node_modules/")+len("node_modules/"):] + " " + p.Version
		l := library{name: name, licences: []string{p.Licence}}
		if !permitted(p.Licence) {
			l.trouble = fmt.Sprintf("is under %q by its lock file, which is not allowed", p.Licence)
		}
		// A package need not carry the text; what it carries must be allowed.
		at := filepath.Join(folder, filepath.FromSlash(path))
		if files, err := licenceFiles(at); err == nil && len(files) > 0 && l.trouble == "" {
			l = judge(name, at, nil)
		}
		libraries = append(libraries, l)
	}
	return libraries, nil
}

// permitted tells whether a licence expression, such as "(MIT OR GPL-3.0-only)",
// leaves a choice that is allowed.
func permitted(expression string) bool {
	expression = strings.TrimSpace(expression)
	if inner, ok := strings.CutPrefix(expression, "("); ok && strings.Count(expression, "(") == 1 {
		expression = strings.TrimSuffix(inner, ")")
	}
	for _, choice := range strings.Split(expression, " OR ") {
		all := true
		for _, id := range strings.Split(choice, " AND ") {
			all = all && slices.Contains(allowed, strings.TrimSpace(id))
		}
		if all {
			return true
		}
	}
	return false
}
