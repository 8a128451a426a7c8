package gatequota

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"time"
)

// options reads values as the user wrote them, one option after the other, and
// keeps the first error. After an error what it returns is of no meaning.
type options struct {
	err   error
	names map[string]bool // of the counts in the scope

	maxLog    int64       // the highest limit of a sliding log
	keySecret string      // for digests of clients; empty: none
	whence    *IPStrategy // of addresses that are no part of a criterion; nil: the peer
}

func (o *options) fail(err error) {
	if o.err == nil {
		o.err = err
	}
}

func (o *options) refuse(option, value, want string) {
	if len(value) > 100 {
		value = value[:100] + "..."
	}
	o.fail(fmt.Errorf("option %s: %q: %s", option, value, want))
}

// wrap refuses an option for the reason that err gives, if it is one.
func (o *options) wrap(option string, err error) {
	if err != nil {
		o.fail(fmt.Errorf("option %s: %w", option, err))
	}
}

// or returns what the user wrote, or the default.
func or(value, otherwise interface{}) interface{} {
	if value == nil {
		return otherwise
	}
	return value
}

// unknown refuses options that nothing is named after. path is that of the options
// around them, with a dot at its end.
func (o *options) unknown(path string, unknown map[string]interface{}) {
	if len(unknown) == 0 {
		return
	}
	var names []string
	for name := range unknown {
		names = append(names, name)
	}
	sort.Strings(names)
	hint := "see the list of options, and mind on which level each stands"
	for i := len(names) - 1; i >= 0; i-- {
		if near := nearest(path, names[i], unknown[names[i]]); near != "" {
			hint = near
		}
		if strings.Contains(names[i], ".") {
			hint = "a dot in the list of options means an option inside another, and is written so in labels alone"
		}
	}
	o.fail(fmt.Errorf("unknown option %s: %s", path+strings.Join(names, ", "+path), hint))
}

// noUnknown refuses options that nothing is named after, before any is missed that
// may stand on the wrong level.
func (o *options) noUnknown(config *Config) {
	o.unknown("", config.Unknown)
	o.unknownLimits("", config.Limits)
	o.unknown("fallback.", config.Fallback.Unknown)
	o.unknownSource("sourceCriterion.", &config.SourceCriterion)
	if config.IPStrategy != nil {
		o.unknown("ipStrategy.", config.IPStrategy.Unknown)
	}
	o.unknown("exempt.", config.Exempt.Unknown)
	for i := range config.Rules {
		r := &config.Rules[i]
		path := "rules[" + strconv.Itoa(i) + "]."
		o.unknown(path, r.Unknown)
		o.unknown(path+"header.", r.Header.Unknown)
		o.unknownLimits(path, r.Limits)
		if r.SourceCriterion != nil {
			o.unknownSource(path+"sourceCriterion.", r.SourceCriterion)
		}
		if r.Exempt != nil {
			o.unknown(path+"exempt.", r.Exempt.Unknown)
		}
		if r.Plans != nil {
			o.unknownPlans(path+"plans.", r.Plans)
		}
		o.unknownOverrides(path, r.Overrides)
	}
	o.unknownPlans("plans.", &config.Plans)
	o.unknownOverrides("", config.Overrides)
	o.unknown("gatewayLimit.", config.GatewayLimit.Unknown)
	o.unknown("response.", config.Response.Unknown)
	o.unknown("metrics.", config.Metrics.Unknown)
	o.unknown("status.", config.Status.Unknown)
	o.unknownLog(config.Log)
	o.unknown("valkey.", config.Valkey.Unknown)
	if config.Valkey.TLS != nil {
		o.unknown("valkey.tls.", config.Valkey.TLS.Unknown)
	}
}

func (o *options) unknownLimits(path string, limits []LimitConfig) {
	for i := range limits {
		o.unknown(path+"limits["+strconv.Itoa(i)+"].", limits[i].Unknown)
	}
}

func (o *options) unknownSource(path string, config *SourceCriterion) {
	o.unknown(path, config.Unknown)
	if config.IPStrategy != nil {
		o.unknown(path+"ipStrategy.", config.IPStrategy.Unknown)
	}
}

func (o *options) unknownPlans(path string, config *PlansConfig) {
	o.unknown(path, config.Unknown)
	for _, name := range sorted(config.Values) {
		at := path + "values." + name + "."
		o.unknown(at, config.Values[name].Unknown)
		o.unknownLimits(at, config.Values[name].Limits)
	}
}

func (o *options) unknownOverrides(path string, overrides []OverrideConfig) {
	for i := range overrides {
		at := path + "overrides[" + strconv.Itoa(i) + "]."
		o.unknown(at, overrides[i].Unknown)
		o.unknownLimits(at, overrides[i].Limits)
	}
}

// number returns the digits of a number as it was written. It refuses what is no
// single number or text.
func (o *options) number(option string, value interface{}, want string) string {
	switch v := value.(type) {
	case nil:
		o.fail(fmt.Errorf("option %s is missing: %s", option, want))
		return ""
	case string:
		return v
	case int:
		return strconv.Itoa(v)
	case int64:
		return strconv.FormatInt(v, 10)
	case uint64:
		return strconv.FormatUint(v, 10)
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	case json.Number:
		return v.String()
	}
	o.refuse(option, fmt.Sprint(value), want)
	return ""
}

// integer reads a whole number in plain decimal digits.
func (o *options) integer(option string, value interface{}, least, most int64) int64 {
	want := fmt.Sprintf("a whole number from %d to %d in plain digits is wanted", least, most)
	text := o.number(option, value, want)
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || strconv.FormatInt(n, 10) != text || n < least || n > most {
		o.refuse(option, text, want)
	}
	return n
}

// duration reads a time such as 90s or 1h30m, a multiple of unit. A number without
// a unit is seconds.
func (o *options) duration(option string, value interface{}, least, most, unit time.Duration) time.Duration {
	want := fmt.Sprintf("a time from %s to %s is wanted, such as %s", brief(least), brief(most), brief(10*least))
	if unit == time.Second {
		want += ", 1m, 2h or 1d, in whole seconds"
	}
	text := o.number(option, value, want)
	d, err := parseDuration(text)
	if err != nil || d < least || d > most || d%unit != 0 {
		if err == nil && strings.Trim(text, "0123456789") == "" {
			want += "; without a unit it was read as " + text + " seconds"
		}
		o.refuse(option, text, want)
	}
	return d
}

// brief writes a duration without zeros at its end.
func brief(d time.Duration) string {
	if d%(24*time.Hour) == 0 {
		return strconv.FormatInt(int64(d/(24*time.Hour)), 10) + "d"
	}
	return d.String()
}

var (
	durationPattern = regexp.MustCompile(`^([0-9]{1,11}(ms|s|m|h|d))+$`)
	durationPart    = regexp.MustCompile(`([0-9]+)(ms|s|m|h|d)`)
	durationUnits   = map[string]time.Duration{"ms": time.Millisecond, "s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour}
)

// parseDuration reads up to twice the longest time that any option takes.
func parseDuration(text string) (time.Duration, error) {
	if text != "" && strings.Trim(text, "0123456789") == "" {
		text += "s"
	}
	if !durationPattern.MatchString(text) {
		return 0, errors.New("not a duration")
	}
	total := time.Duration(0)
	for _, part := range durationPart.FindAllStringSubmatch(text, -1) {
		n, err := strconv.ParseInt(part[1], 10, 64)
		unit := durationUnits[part[2]]
		if err != nil || n > int64((2*maxWindow-total)/unit) {
			return 0, errors.New("out of range")
		}
		total += time.Duration(n) * unit
	}
	return total, nil
}

// text reads a text. A number is refused, since nobody knows how it was written.
func (o *options) text(option string, value interface{}) string {
	text, ok := value.(string)
	if !ok && value != nil {
		// Without the value: it may be a password.
		o.fail(fmt.Errorf("option %s is %s", option, noText(value)))
	}
	return text
}

// noText says what a value is that should be a text, and what to do about it.
func noText(value interface{}) string {
	switch value.(type) {
	case []interface{}, []string:
		return "one text, and no list of them"
	case map[string]interface{}:
		return "a text, and there are no options inside it"
	case bool:
		return "no text but a boolean: put it in quotes"
	}
	return "no text but a number: put it in quotes"
}

// given reads a text that is not empty, and "" where nothing is written.
func (o *options) given(option string, value interface{}) string {
	text := o.text(option, value)
	if value != nil && strings.Trim(text, " \t") == "" {
		o.refuse(option, text, "it is empty; leave the option out if that is meant")
	}
	return text
}

// token reads a text as given does, out of the characters of a token of HTTP.
func (o *options) token(option string, value interface{}, want string) string {
	text := o.given(option, value)
	if value != nil && !tokenPattern.MatchString(text) {
		o.refuse(option, text, want)
	}
	return text
}

// list reads a list of texts, without the blanks around each. A provider may hand one
// over that was cut at commas.
func (o *options) list(option string, texts []string) []string {
	var list []string
	if texts != nil && len(texts) == 0 {
		o.fail(fmt.Errorf("option %s is an empty list: leave it out if nothing is to be in it", option))
	}
	for i, text := range texts {
		text = strings.TrimSpace(text)
		if text == "" {
			o.refuse(option+"["+strconv.Itoa(i)+"]", texts[i], "an entry of the list is empty")
		}
		list = append(list, text)
	}
	return list
}

// choice reads one of several words.
func (o *options) choice(option string, value interface{}, allowed ...string) string {
	text := o.text(option, value)
	for _, each := range allowed {
		if text == each {
			return text
		}
	}
	o.refuse(option, text, "one of "+strings.Join(allowed, ", ")+" is wanted")
	return text
}

// boolean reads true or false, which it is when nothing is written.
func (o *options) boolean(option string, value interface{}) bool {
	switch v := value.(type) {
	case nil:
		return false
	case bool:
		return v
	case string:
		if v == "true" || v == "false" {
			return v == "true"
		}
	}
	o.refuse(option, fmt.Sprint(value), "true or false is wanted")
	return false
}
