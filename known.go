package gatequota

import (
	"sort"
	"strconv"
	"strings"
)

// known holds the names of all options by the type that they are fields of, and for
// each what it is: empty for an option that has a value or several, else the type of the
// options inside it, behind [] where they come as a list and behind map[string] where
// they come by name.
var known = map[string]map[string]string{
	"Config": {
		"limit": "", "window": "", "limits": "[]LimitConfig", "algorithm": "", "burst": "", "maxLog": "", "cost": "", "scope": "", "mode": "",
		"onStoreFailure": "", "fallback": "FallbackConfig", "sourceCriterion": "SourceCriterion", "ipStrategy": "IPStrategy",
		"exempt": "ExemptConfig", "rules": "[]RuleConfig", "plans": "PlansConfig", "overrides": "[]OverrideConfig", "gatewayLimit": "GatewayLimitConfig",
		"dryRun": "", "headers": "", "decisionHeader": "", "exposeHeaders": "", "response": "ResponseConfig",
		"maxClients": "", "valkey": "ValkeyConfig", "metrics": "WatchConfig", "status": "WatchConfig", "log": "LogConfig", "control": "",
	},
	"LimitConfig": {"name": "", "limit": "", "window": "", "burst": ""},
	"RuleConfig": {
		"name": "", "path": "", "pathPrefix": "", "pathRegex": "", "methods": "", "host": "", "header": "HeaderConfig",
		"limit": "", "window": "", "limits": "[]LimitConfig", "algorithm": "", "burst": "", "cost": "", "sourceCriterion": "SourceCriterion",
		"onStoreFailure": "", "exempt": "ExemptConfig", "plans": "PlansConfig", "overrides": "[]OverrideConfig", "dryRun": "",
	},
	"HeaderConfig":       {"name": "", "value": ""},
	"ExemptConfig":       {"ips": "", "paths": "", "methods": "", "preflight": ""},
	"PlansConfig":        {"header": "", "claim": "", "default": "", "values": "map[string]AllowanceConfig"},
	"AllowanceConfig":    {"limit": "", "burst": "", "limits": "[]LimitConfig"},
	"OverrideConfig":     {"value": "", "hash": "", "limit": "", "burst": "", "limits": "[]LimitConfig"},
	"GatewayLimitConfig": {"limit": "", "window": ""},
	"ResponseConfig":     {"status": "", "body": "", "contentType": ""},
	"FallbackConfig":     {"limit": "", "gateways": ""},
	"SourceCriterion": {
		"requestHeaderName": "", "requestHeaderNames": "", "requestHost": "", "ipStrategy": "IPStrategy", "cookieName": "",
		"queryParameter": "", "pathSegment": "", "jwtClaim": "", "tlsClientSubject": "", "onMissing": "",
	},
	"IPStrategy": {"depth": "", "excludedIPs": "", "trustedIPs": "", "ipv4Subnet": "", "ipv6Subnet": ""},
	"ValkeyConfig": {
		"endpoints": "", "username": "", "password": "", "passwordFile": "", "db": "", "timeout": "", "dialTimeout": "",
		"keyPrefix": "", "keySecret": "", "keySecretFile": "", "tls": "TLSConfig",
	},
	"WatchConfig": {"path": "", "allow": "", "token": "", "tokenFile": ""},
	"LogConfig":   {"format": "", "refusals": ""},
	"TLSConfig":   {"ca": "", "cert": "", "key": "", "serverName": "", "insecureSkipVerify": ""},
}

// foreign are names that Traefik's own rateLimit and others have for what is called
// otherwise here.
var foreign = map[string]string{"average": "limit", "rate": "limit", "period": "window", "redis": "valkey"}

// clients are names by which an override may be meant to name its client.
var clients = map[string]bool{"key": true, "apikey": true, "client": true, "id": true, "ip": true, "address": true, "name": true, "user": true}

// nearest returns a hint at the option that was meant by an unknown name, or "" if none
// is near. path is that of the options around the name, such as "" or "rules[2].header.",
// with a dot at its end; inner is what was written for the name, a map where that is
// options.
func nearest(path, name string, inner interface{}) string {
	level := levelOf(path)
	written := plain(name)
	if foreign[written] != "" {
		written = foreign[written]
	}
	if around := windowOf(path); around >= 0 && distance(written, "window") < 2 {
		return "windows are the same for all clients, and are set by " + path[:around] + "window"
	}
	if level == "OverrideConfig" && clients[written] {
		return "a client is named by either " + path + "value or " + path + "hash"
	}
	if options, is := inner.(map[string]interface{}); is && known[level][similar(level, written)] == "" {
		if hint := misplaced(path, level, name, options); hint != "" {
			return hint
		}
	}
	if found := similar(level, written); found != "" {
		return "did you mean " + path + found + "?"
	}
	_, group := inner.(map[string]interface{})
	// The levels inside the one that it stands on come before those around it.
	for around := path; ; around = outer(around) {
		if found := inside(around, written, 0, group); found != "" {
			dot := strings.LastIndexByte(found, '.')
			if dot < 0 {
				return "it belongs on the top level, as " + found
			}
			return "it belongs into " + found[:dot] + ", as " + found
		}
		if around == "" {
			break
		}
	}
	if found := begun(levelOf(path), written); found != "" {
		return "did you mean " + path + found + "?"
	}
	if found := inside("", written, 1, group); found != "" && len(written) > 3 {
		return "did you mean " + found + "?"
	}
	return ""
}

// windowOf returns how much of a path stands before the plans or overrides that it leads
// into, which have no windows, or -1.
func windowOf(path string) int {
	at := strings.Index("."+path, ".plans.")
	if at < 0 {
		at = strings.Index("."+path, ".overrides[")
	}
	return at
}

// misplaced returns a hint for a name that has options inside it and is none itself: that
// of a plan, or of an entry of a list. It returns "" for others.
func misplaced(path, level, name string, options map[string]interface{}) string {
	if level == "PlansConfig" {
		meant := path + "values." + name
		for _, option := range optionsOf("AllowanceConfig") {
			if options[option] != nil {
				return "did you mean " + meant + "." + option + "?"
			}
		}
		return "did you mean " + meant + "?"
	}
	if !strings.HasSuffix(path, "].") || inside("", plain(name), 0, true) != "" {
		return ""
	}
	entry := strings.TrimSuffix(path, ".")
	hint := "the entries of a list have numbers, not names: write " + entry
	if _, named := known[level]["name"]; named {
		hint += " for the first, and " + strconv.Quote(name) + " as " + entry + ".name"
	}
	return hint
}

// plain returns a name as it is compared.
func plain(name string) string {
	return strings.NewReplacer("_", "", "-", "").Replace(strings.ToLower(name))
}

// outer returns the path of the level around the one that path leads to.
func outer(path string) string {
	return path[:strings.LastIndexByte(strings.TrimSuffix(path, "."), '.')+1]
}

// levelOf returns the type of the options that path leads to.
func levelOf(path string) string {
	level := "Config"
	for _, part := range strings.Split(path, ".") {
		bracket := strings.IndexByte(part, '[')
		if bracket >= 0 {
			part = part[:bracket]
		}
		// What is no option here is the name of a plan.
		if inner := known[level][part]; inner != "" {
			level = inner[strings.IndexByte(inner, ']')+1:]
		}
	}
	return level
}

// similar returns the option of a level that is most like a plain name, or "".
func similar(level, written string) string {
	found, least := "", len(written)/3+1
	for _, option := range optionsOf(level) {
		away := distance(plain(option), written)
		if away < least {
			found, least = option, away
		}
	}
	if found != "" || len(written) < 4 {
		return found
	}
	for _, option := range optionsOf(level) {
		candidate := plain(option)
		if strings.Contains(candidate, written) || len(candidate) > 3 && strings.HasPrefix(written, candidate) {
			return option
		}
	}
	return ""
}

// begun returns the first option of a level that begins with a plain name of at least
// two letters, or "". So few may begin many names: it is asked after the exact ones.
func begun(level, written string) string {
	for _, option := range optionsOf(level) {
		if len(written) > 1 && strings.HasPrefix(plain(option), written) {
			return option
		}
	}
	return ""
}

// inside returns the path of the option that is most, so many letters apart, a plain
// name, among those that the level of path holds on any depth, or "". It is one of those
// that stand least deep, of which there may be a group and a value: group says which is
// meant.
func inside(path, written string, apart int, group bool) string {
	paths, levels, other := []string{path}, []string{levelOf(path)}, ""
	for i := 0; i < len(paths); i++ {
		names := optionsOf(levels[i])
		for _, option := range names {
			if distance(plain(option), written) > apart {
				continue
			}
			if group == (known[levels[i]][option] != "") {
				return paths[i] + option
			}
			if other == "" {
				other = paths[i] + option
			}
		}
		// Who has forgotten on which level a path belongs means that of a rule.
		for _, last := range []bool{false, true} {
			for _, option := range names {
				inner := known[levels[i]][option]
				if inner == "" || (inner == "WatchConfig") != last {
					continue
				}
				within := paths[i] + option
				if strings.HasPrefix(inner, "[]") {
					within += "[0]"
				} else if strings.HasPrefix(inner, "map") {
					within += ".<plan>"
				}
				paths = append(paths, within+".")
				levels = append(levels, inner[strings.IndexByte(inner, ']')+1:])
			}
		}
	}
	return other
}

// optionsOf returns the names of the options of a level in the order of letters.
func optionsOf(level string) []string {
	var names []string
	for name := range known[level] {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// distance returns how many letters must be added, dropped or replaced to make one name
// the other.
func distance(one, other string) int {
	row := make([]int, len(other)+1)
	for j := range row {
		row[j] = j
	}
	for i := 0; i < len(one); i++ {
		corner := row[0]
		row[0] = i + 1
		for j := 0; j < len(other); j++ {
			away := corner
			if one[i] != other[j] {
				away++
			}
			corner = row[j+1]
			if corner+1 < away {
				away = corner + 1
			}
			if row[j]+1 < away {
				away = row[j] + 1
			}
			row[j+1] = away
		}
	}
	return row[len(other)]
}
