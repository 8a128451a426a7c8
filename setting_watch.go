package gatequota

import (
	"errors"
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	"github.com/gatequota/gatequota/journal"
	"github.com/gatequota/gatequota/source"
)

// watch is where those who watch over the gateway are answered, and who they are.
type watch struct {
	path  string         // as of a request's URL, decoded
	allow []netip.Prefix // of peers; IPv4 is not mapped into IPv6
	token string         // "": none is asked for
}

// loopback are the peers that are answered where nothing is said of them.
var loopback = []string{"127.0.0.0/8", "::1/128"}

// maxRefusals is how many refused requests at most there are for each that is logged.
const maxRefusals = 1000000

// bearerPattern is for what a client can send as a bearer token.
var bearerPattern = regexp.MustCompile(`^[!-~]+$`)

// watching checks the options of those who watch over a gateway and change it while it
// runs.
func (o *options) watching(s *setting, config *Config, shared bool) {
	s.metrics = o.watch("metrics.", &config.Metrics)
	s.status = o.watch("status.", &config.Status)
	if s.metrics != nil && s.status != nil && s.metrics.path == s.status.path {
		o.refuse("status.path", s.status.path, "metrics.path is the same, and only one of them can be answered there")
	}
	s.control = o.boolean("control", config.Control)
	if s.control && !shared {
		o.refuse("control", "true", "it goes through the store: only mode shared has one")
	}
	o.logging(s, config.Log)
}

// watch checks the options under path. It returns nil where nobody is to be answered.
func (o *options) watch(path string, config *WatchConfig) *watch {
	if config.Path == nil {
		for _, set := range []struct {
			option string
			is     bool
		}{{"allow", config.Allow != nil}, {"token", config.Token != nil}, {"tokenFile", config.TokenFile != nil}} {
			if set.is {
				o.fail(errors.New("option " + path + "path is missing: " + path + set.option + " is of no use without it"))
			}
		}
		return nil
	}
	w := &watch{path: o.text(path+"path", config.Path)}
	if !strings.HasPrefix(w.path, "/") || strings.ContainsAny(w.path, "?#%*{} \t") || source.CleanPath(w.path) != w.path {
		o.refuse(path+"path", w.path, "a whole path is wanted, such as /-/gatequota, without a slash at its end, escapes, wildcards and query")
	}
	allow := config.Allow
	if allow == nil {
		allow = loopback
	}
	w.allow = o.networks(path+"allow", allow)
	w.token = o.watchToken(path+"token", config)
	return w
}

// watchToken reads a token, or takes it from a file. It is in no error.
func (o *options) watchToken(option string, config *WatchConfig) string {
	token := o.secret(option, config.Token, config.TokenFile)
	named := option
	if config.TokenFile != nil {
		named = option + "File"
		token = strings.TrimRight(token, "\r\n")
	}
	if (config.Token != nil || config.TokenFile != nil) && !bearerPattern.MatchString(token) {
		o.fail(errors.New("option " + named + ": at least one visible character of ASCII is wanted, and no blanks"))
	}
	return token
}

// logging checks the option log, which is a format or has options inside it.
func (o *options) logging(s *setting, value interface{}) {
	config := LogConfig{Format: value}
	format := "log"
	if written, inside := value.(map[string]interface{}); inside {
		format = "log.format"
		config = LogConfig{}
		for name, each := range written {
			switch strings.ToLower(name) {
			case "format":
				config.Format = each
			case "refusals":
				config.Refusals = each
			}
		}
	}
	s.json = o.choice(format, or(config.Format, "text"), "text", "json") == "json"
	if config.Refusals == nil {
		return
	}
	text := o.text("log.refusals", config.Refusals)
	n, err := strconv.ParseInt(strings.TrimPrefix(text, "1/"), 10, 64)
	if err != nil || "1/"+strconv.FormatInt(n, 10) != text || n < 1 || n > maxRefusals {
		o.refuse("log.refusals", text, "1/N is wanted with N from 1 to "+strconv.Itoa(maxRefusals)+", such as 1/100, for each N-th refused request")
	}
	s.refusals = n
}

// unknownLog refuses options in log that nothing is named after. It stands in an
// interface, where nothing sorts them out before.
func (o *options) unknownLog(value interface{}) {
	written, _ := value.(map[string]interface{})
	unknown := map[string]interface{}{}
	for name, each := range written {
		lower := strings.ToLower(name)
		if lower != "format" && lower != "refusals" {
			unknown[name] = each
		}
	}
	o.unknown("log.", unknown)
}

// setFormat has all lines written as the configuration in force wants them, with a
// middleware that is about to be in force: as JSON where one of its middlewares says so.
func setFormat(s *setting) {
	on := s.json
	for _, m := range middlewaresInForce() {
		on = on || m.setting.json
	}
	journal.SetJSON(on)
}
