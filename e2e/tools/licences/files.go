package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/google/licensecheck"
)

// least is how much of a file must be the text of licences, in percent of its words:
// a copyright line or a title stands beside most of them.
const least = 80

// read holds the SHA-256 of files that no list of licences knows, or that are not about
// what is used, and that somebody here has read and found harmless.
var read = map[string]string{
	"eb4df27f95a096a23d88e567331a4bee5590d22185942a1b0456197e29d03e59": "the one of Lucent's dtoa: to use, copy, modify and distribute for any purpose without fee",
	"a1d1adec3ba691ef6e377a78bbe9e9e2501f2f4a1723d08857da1ac6564e4fed": "CC-BY-SA-4.0, for the documentation of a library whose code is under Apache-2.0",
}

var (
	carries = regexp.MustCompile(`(?i)^(un)?licen[cs]e|^copying|-licen[cs]e(\.|$)`)
	source  = regexp.MustCompile(`(?i)\.(go|c|h|js|ts|mjs|cjs|json|html)$`)
)

// licenceFiles returns the names of the files in a folder that hold a licence by their
// names.
func licenceFiles(folder string) ([]string, error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if !e.IsDir() && carries.MatchString(e.Name()) && !source.MatchString(e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// judge reads the licence files of a library: those in its root, of which there must
// be one, and those in the other folders of it that are used.
func judge(name, root string, used []string) library {
	l := library{name: name}
	folders := append([]string{root}, used...)
	slices.Sort(folders)
	for _, folder := range slices.Compact(folders) {
		files, err := licenceFiles(folder)
		if err != nil {
			l.trouble = err.Error()
			return l
		}
		if len(files) == 0 && folder == root {
			l.trouble = "carries no file with a licence"
			return l
		}
		for _, file := range files {
			text, err := os.ReadFile(filepath.Join(folder, file))
			if err != nil {
				l.trouble = err.Error()
				return l
			}
			within, _ := filepath.Rel(root, filepath.Join(folder, file))
			ids, trouble := recognize(text)
			if trouble != "" {
				l.trouble = within + " " + trouble
				return l
			}
			l.licences = append(l.licences, ids...)
		}
	}
	slices.Sort(l.licences)
	l.licences = slices.Compact(l.licences)
	return l
}

// recognize returns the licences that a text consists of, or why it may not be used.
func recognize(text []byte) (ids []string, trouble string) {
	if sum := sha256.Sum256(text); read[hex.EncodeToString(sum[:])] != "" {
		return nil, ""
	}
	found := licensecheck.Scan(text)
	for _, m := range found.Match {
		if !slices.Contains(allowed, m.ID) {
			return nil, "is under " + m.ID + ", which is not allowed"
		}
		ids = append(ids, m.ID)
	}
	if found.Percent < least {
		return nil, fmt.Sprintf("is no text of a known licence: %.0f %% of it are%s", found.Percent, strings.Join(append([]string{""}, ids...), " "))
	}
	return ids, ""
}
