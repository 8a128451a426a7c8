// Package journal writes the lines that the plugin leaves behind for who operates a
// gateway. It knows nothing of what they are about; no secret may be given to it.
package journal

import (
	"bytes"
	"encoding/json"
	"log"
	"os"
	"strings"
	"sync/atomic"
	"time"
)

// The events that lines are about. They are for programs that read the log and stay the
// same, whatever becomes of the texts.
const (
	StoreAway    = "store-away"    // a store is not asked any more
	StoreBack    = "store-back"    // it is asked again
	StoreTrouble = "store-trouble" // it does not do all that is wanted, or is still away
	Settings     = "settings"      // a middleware was loaded, with settings that are new
	DryRun       = "dry-run"       // what would have been refused
	Refusal      = "refusal"       // one of the requests that were refused
	Control      = "control"       // an operator has changed something, or tried to
)

// prefix begins all texts, among the many other lines of a gateway.
const prefix = "gatequota: "

// numbers are the fields whose values are numbers, and stand without quotes.
var numbers = map[string]bool{"requests": true, "refused": true, "seconds": true, "version": true}

var asJSON atomic.Bool

// SetJSON says whether all lines from now on are JSON objects, or texts.
func SetJSON(on bool) {
	asJSON.Store(on)
}

// Error writes a line about what an operator should know of at once. As a text Traefik takes
// it into its own log, with the level ERR: the interpreter hands it what the package log
// prints. fields are names and values in turn, of what the text holds; they stand in JSON
// alone. Names are not time, event or message, and none comes twice.
func Error(event, text string, fields ...string) {
	if asJSON.Load() {
		write(line(time.Now(), event, text, fields))
		return
	}
	log.Print(prefix + text)
}

// Note writes a line that is no trouble. As a text it stands on the standard error of
// Traefik and not in its log, which would call it an error or leave it out.
func Note(event, text string, fields ...string) {
	if asJSON.Load() {
		write(line(time.Now(), event, text, fields))
		return
	}
	write(prefix + text + "\n")
}

// write writes a line at once, so that nothing comes between its parts. Objects go past
// Traefik's log too: it would make each the text of a line of its own.
func write(text string) {
	_, _ = os.Stderr.WriteString(text)
}

// line returns a line as a JSON object.
func line(now time.Time, event, text string, fields []string) string {
	var b strings.Builder
	b.WriteString(`{"time":"` + now.UTC().Format("2006-01-02T15:04:05.000Z") + `","event":` + quoted(event) + `,"message":` + quoted(prefix+text))
	for i := 0; i+1 < len(fields); i += 2 {
		value := fields[i+1]
		if !numbers[fields[i]] {
			value = quoted(value)
		}
		b.WriteString("," + quoted(fields[i]) + ":" + value)
	}
	b.WriteString("}\n")
	return b.String()
}

// quoted returns a text as JSON, with all that is printable in it as it is.
func quoted(text string) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(text)
	return strings.TrimSuffix(b.String(), "\n")
}
