// Package stand_in is the smallest plugin that shows what the host hands over.
package stand_in

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"
	"strconv"
	"sync"

	"example.test/stand-in/part"
)

// Nested holds an option one level down.
type Nested struct {
	List    []string
	Unknown map[string]interface{} `mapstructure:",remain"`
}

// Config is what the options are decoded into.
type Config struct {
	Word    string
	Number  interface{}
	Nested  *Nested
	Unknown map[string]interface{} `mapstructure:",remain"`
}

// CreateConfig returns the defaults.
func CreateConfig() *Config { return &Config{Word: "default", Nested: &Nested{}} }

var (
	mu    sync.Mutex
	count int
)

type handler struct {
	next http.Handler
	text string
}

// New refuses the word "bad" and reports what it got in headers.
func New(_ context.Context, next http.Handler, config *Config, name string) (http.Handler, error) {
	if config.Word == "bad" {
		return nil, errors.New("word: \"bad\" is refused")
	}
	fmt.Println("printed")
	log.Print("logged")
	fmt.Fprintln(os.Stderr, "written")
	text := fmt.Sprintf("%s|%s|%v|%q|%v|%v|%p", name, part.Double(config.Word), config.Number,
		config.Nested.List, config.Nested.Unknown, config.Unknown, config)
	return &handler{next: next, text: text}, nil
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	mu.Lock()
	count++
	n := count
	mu.Unlock()
	w.Header()["X-Text"] = []string{h.text}
	w.Header()["X-Count"] = []string{strconv.Itoa(n)}
	h.next.ServeHTTP(w, r)
}
