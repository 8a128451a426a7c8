package reply

import (
	"math"
	"net/http"
	"reflect"
	"strings"
	"testing"
)

const name = "X-RateLimit-Decision"

func TestWriteIsExact(t *testing.T) {
	tests := []struct {
		name             string
		fields           *Fields
		allowed          bool
		remaining, reset int64
		way              string
		want             http.Header
	}{
		{
			"all fields", one("quota@docker", 100, 60, Both, name), true, 99, 42, "shared",
			http.Header{
				"Ratelimit-Policy":      {`"quota@docker";q=100;w=60`},
				"Ratelimit":             {`"quota@docker";r=99;t=42`},
				"X-Ratelimit-Limit":     {"100"},
				"X-Ratelimit-Remaining": {"99"},
				"X-Ratelimit-Reset":     {"42"},
				"X-Ratelimit-Decision":  {"shared"},
			},
		},
		{
			"IETF", one("login@file", 5, 900, IETF, ""), true, 0, 1, "local",
			http.Header{
				"Ratelimit-Policy": {`"login@file";q=5;w=900`},
				"Ratelimit":        {`"login@file";r=0;t=1`},
			},
		},
		{
			"legacy", one("apikey", 1, 1, Legacy, ""), false, 0, 1, "local",
			http.Header{
				"X-Ratelimit-Limit":     {"1"},
				"X-Ratelimit-Remaining": {"0"},
				"X-Ratelimit-Reset":     {"1"},
			},
		},
		{
			"none", one("apikey", 1, 1, None, ""), true, 0, 1, "local", http.Header{},
		},
		{
			"decision alone, under a name of the user's", one("apikey", 1, 1, None, "x-decided-by"), true, 0, 1, "local",
			http.Header{"X-Decided-By": {"local"}},
		},
		{
			"never negative", one("apikey", 10, 60, Both, ""), false, -7, 30, "shared",
			http.Header{
				"Ratelimit-Policy":      {`"apikey";q=10;w=60`},
				"Ratelimit":             {`"apikey";r=0;t=30`},
				"X-Ratelimit-Limit":     {"10"},
				"X-Ratelimit-Remaining": {"0"},
				"X-Ratelimit-Reset":     {"30"},
			},
		},
		{
			"far below zero", one("apikey", 10, 60, IETF, ""), false, math.MinInt64, 30, "shared",
			http.Header{
				"Ratelimit-Policy": {`"apikey";q=10;w=60`},
				"Ratelimit":        {`"apikey";r=0;t=30`},
			},
		},
		{
			"largest", one("a.b-c_d@e", 999999999999999, 31622400, Both, ""), true, 999999999999998, 31622400, "shared",
			http.Header{
				"Ratelimit-Policy":      {`"a.b-c_d@e";q=999999999999999;w=31622400`},
				"Ratelimit":             {`"a.b-c_d@e";r=999999999999998;t=31622400`},
				"X-Ratelimit-Limit":     {"999999999999999"},
				"X-Ratelimit-Remaining": {"999999999999998"},
				"X-Ratelimit-Reset":     {"31622400"},
			},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			alone := http.Header{}
			Write(test.fields, alone, test.allowed, test.remaining, test.reset, test.way)
			compare(t, alone, test.want)

			beside := http.Header{"Vary": {"Accept-Encoding"}}
			Write(test.fields, beside, test.allowed, test.remaining, test.reset, test.way)
			if got := beside.Get("Vary"); got != "Accept-Encoding" {
				t.Errorf("Vary has become %q", got)
			}
			delete(beside, "Vary")
			compare(t, beside, test.want)
		})
	}
}

func TestWriteUncountedClaimsNothing(t *testing.T) {
	h := http.Header{}
	WriteUncounted(one("quota@docker", 100, 60, Both, name), h, "open")
	compare(t, h, http.Header{
		"Ratelimit-Policy":     {`"quota@docker";q=100;w=60`},
		"X-Ratelimit-Decision": {"open"},
	})

	h = http.Header{}
	WriteUncounted(one("quota@docker", 100, 60, Legacy, ""), h, "closed")
	compare(t, h, http.Header{})

	h = http.Header{
		"Ratelimit-Policy":      {`"all";q=1000;w=60, "quota@docker";q=7;w=1`},
		"Ratelimit":             {`"all";r=900;t=7, "quota@docker";r=3;t=1`},
		"X-Ratelimit-Remaining": {"900"},
	}
	WriteUncounted(one("quota@docker", 100, 60, Both, ""), h, "closed")
	compare(t, h, http.Header{
		"Ratelimit-Policy":      {`"all";q=1000;w=60, "quota@docker";q=100;w=60`},
		"Ratelimit":             {`"all";r=900;t=7`},
		"X-Ratelimit-Remaining": {"900"},
	})

	h = http.Header{"Ratelimit": {`"quota@docker";r=3;t=1`}}
	WriteUncounted(one("quota@docker", 100, 60, IETF, ""), h, "open")
	compare(t, h, http.Header{"Ratelimit-Policy": {`"quota@docker";q=100;w=60`}})
}

func TestTwoLimitersInOneChain(t *testing.T) {
	outer := one("all", 1000, 3600, Both, name)
	tests := []struct {
		name                       string
		outerRemaining, outerReset int64
		allowed                    bool
		remaining, reset           int64
		limit, left, wait          string
	}{
		{"inner has less", 900, 1800, true, 4, 30, "5", "4", "30"},
		{"outer has less", 3, 1800, true, 4, 30, "1000", "3", "1800"},
		{"as many, outer later", 4, 1800, true, 4, 30, "1000", "4", "1800"},
		{"as many, inner later", 4, 20, true, 4, 30, "5", "4", "30"},
		{"as many, at once", 4, 30, true, 4, 30, "5", "4", "30"},
		{"both spent", 0, 1800, true, 0, 30, "1000", "0", "1800"},
		{"inner refuses", 900, 1800, false, 0, 30, "5", "0", "30"},
		{"inner refuses, outer spent for longer", 0, 1800, false, 0, 30, "5", "0", "30"},
		{"inner refuses a dear request", 1, 1800, false, 4, 30, "5", "4", "30"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			h := http.Header{}
			Write(outer, h, true, test.outerRemaining, test.outerReset, "local")
			Write(one("login", 5, 60, Both, name), h, test.allowed, test.remaining, test.reset, "shared")
			all, login := http.Header{}, http.Header{}
			Write(outer, all, true, test.outerRemaining, test.outerReset, "local")
			Write(one("login", 5, 60, IETF, ""), login, test.allowed, test.remaining, test.reset, "shared")
			compare(t, h, http.Header{
				"Ratelimit-Policy":      {`"all";q=1000;w=3600, "login";q=5;w=60`},
				"Ratelimit":             {all.Get("RateLimit") + ", " + login.Get("RateLimit")},
				"X-Ratelimit-Limit":     {test.limit},
				"X-Ratelimit-Remaining": {test.left},
				"X-Ratelimit-Reset":     {test.wait},
				"X-Ratelimit-Decision":  {"shared"},
			})
		})
	}
}

func TestThreeLimitersInOneChain(t *testing.T) {
	h := http.Header{}
	Write(one("a", 10, 60, Both, ""), h, true, 9, 60, "shared")
	Write(one("b", 5, 60, Both, ""), h, true, 4, 60, "shared")
	Write(one("c", 7, 60, Both, ""), h, true, 6, 60, "shared")
	compare(t, h, http.Header{
		"Ratelimit-Policy":      {`"a";q=10;w=60, "b";q=5;w=60, "c";q=7;w=60`},
		"Ratelimit":             {`"a";r=9;t=60, "b";r=4;t=60, "c";r=6;t=60`},
		"X-Ratelimit-Limit":     {"5"},
		"X-Ratelimit-Remaining": {"4"},
		"X-Ratelimit-Reset":     {"60"},
	})
}

func TestOneLimiterRunTwiceIsListedOnce(t *testing.T) {
	f := one("quota@docker", 100, 60, Both, "")
	h := http.Header{}
	Write(one("quota", 3, 60, IETF, ""), h, true, 2, 60, "shared") // a name that is the beginning of the other
	Write(f, h, true, 99, 42, "shared")
	Write(f, h, true, 98, 41, "shared")
	compare(t, h, http.Header{
		"Ratelimit-Policy":      {`"quota";q=3;w=60, "quota@docker";q=100;w=60`},
		"Ratelimit":             {`"quota";r=2;t=60, "quota@docker";r=98;t=41`},
		"X-Ratelimit-Limit":     {"100"},
		"X-Ratelimit-Remaining": {"98"},
		"X-Ratelimit-Reset":     {"41"},
	})
}

func TestForeignListsAreKeptOrDroppedWhole(t *testing.T) {
	const own = `"own";r=1;t=2`
	tests := []struct {
		name  string
		lines []string
		want  string
	}{
		{"none", nil, own},
		{"one", []string{`"a";r=5;t=6`}, `"a";r=5;t=6, ` + own},
		{"no parameters", []string{`"a"`}, `"a", ` + own},
		{"several lines", []string{`"a";r=5`, `"b";r=6`}, `"a";r=5, "b";r=6, ` + own},
		{"without blanks", []string{`"a";r=5,"b";r=6`}, `"a";r=5,"b";r=6, ` + own},
		{"many blanks", []string{"  \"a\"; r=5 \t,\t \"b\";  r=6  "}, "  \"a\"; r=5 \t,\t \"b\";  r=6  , " + own},
		{"commas, semicolons and quotes within", []string{`"a,b;c\"d\\";r=5;x="y, \"own\";r=9"`}, `"a,b;c\"d\\";r=5;x="y, \"own\";r=9", ` + own},
		{"every type of parameter", []string{`"a";b;c=?1;d=-1.5;e=:cGs=:;f=tok/en*;*g=@1700000000;h=%"f%c3%bc"`}, `"a";b;c=?1;d=-1.5;e=:cGs=:;f=tok/en*;*g=@1700000000;h=%"f%c3%bc", ` + own},
		{"own name between others", []string{`"a";r=5, "own";r=9;t=9, "b";r=6`}, `"a";r=5, "b";r=6, ` + own},
		{"own name alone", []string{`"own";r=9`}, own},
		{"own name as a parameter", []string{`"a";r=5;x="own", "b";r=6`}, `"a";r=5;x="own", "b";r=6, ` + own},
		{"longer name", []string{`"owner";r=9`}, `"owner";r=9, ` + own},

		{"empty", []string{""}, own},
		{"dictionary of an older draft", []string{`limit=100, remaining=50, reset=5`}, own},
		{"integers of an older draft", []string{`100;w=60`}, own},
		{"tokens", []string{`default;r=50;t=30`}, own},
		{"open quote", []string{`"a;r=5`}, own},
		{"unknown escape", []string{`"a\n";r=5`}, own},
		{"comma at the end", []string{`"a";r=5,`}, own},
		{"comma in front", []string{`,"a";r=5`}, own},
		{"two items without comma", []string{`"a" "b"`}, own},
		{"inner list", []string{`("a" "b");r=5`}, own},
		{"key with a capital letter", []string{`"a";R=5`}, own},
		{"no key", []string{`"a";=5`}, own},
		{"value missing", []string{`"a";r=`}, own},
		{"integer too long", []string{`"a";r=1234567890123456`}, own},
		{"control byte", []string{"\"a\x01\";r=5"}, own},
		{"beyond ASCII", []string{`"ü";r=5`}, own},
		{"good line beside a bad one", []string{`"a";r=5`, `"b`, `"c";r=6`}, `"a";r=5, "c";r=6, ` + own},
		{"many quotes", []string{strings.Repeat(`"`, 1<<16)}, own},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			h := http.Header{"Ratelimit": test.lines}
			Write(one("own", 3, 4, IETF, ""), h, true, 1, 2, "shared")
			compare(t, h, http.Header{"Ratelimit-Policy": {`"own";q=3;w=4`}, "Ratelimit": {test.want}})
		})
	}
}

func TestUnreadableOlderFieldsAreReplaced(t *testing.T) {
	tests := []struct {
		name   string
		header http.Header
		keep   bool
	}{
		{"readable and tighter", http.Header{"X-Ratelimit-Limit": {"9"}, "X-Ratelimit-Remaining": {"3"}, "X-Ratelimit-Reset": {"5"}}, true},
		{"largest", http.Header{"X-Ratelimit-Limit": {"9223372036854775807"}, "X-Ratelimit-Remaining": {"4"}, "X-Ratelimit-Reset": {"9223372036854775807"}}, true},
		{"looser", http.Header{"X-Ratelimit-Limit": {"9"}, "X-Ratelimit-Remaining": {"8"}, "X-Ratelimit-Reset": {"5"}}, false},
		{"text", http.Header{"X-Ratelimit-Limit": {"9"}, "X-Ratelimit-Remaining": {"few"}, "X-Ratelimit-Reset": {"5"}}, false},
		{"negative", http.Header{"X-Ratelimit-Limit": {"9"}, "X-Ratelimit-Remaining": {"-1"}, "X-Ratelimit-Reset": {"5"}}, false},
		{"too large", http.Header{"X-Ratelimit-Limit": {"9"}, "X-Ratelimit-Remaining": {"3"}, "X-Ratelimit-Reset": {"9223372036854775808"}}, false},
		{"a date", http.Header{"X-Ratelimit-Limit": {"9"}, "X-Ratelimit-Remaining": {"3"}, "X-Ratelimit-Reset": {"Tue, 15 Nov 1994 18:00:00 GMT"}}, false},
		{"several limits", http.Header{"X-Ratelimit-Limit": {"9, 9;w=60"}, "X-Ratelimit-Remaining": {"3"}, "X-Ratelimit-Reset": {"5"}}, false},
		{"limit missing", http.Header{"X-Ratelimit-Remaining": {"3"}, "X-Ratelimit-Reset": {"5"}}, false},
		{"reset missing", http.Header{"X-Ratelimit-Limit": {"9"}, "X-Ratelimit-Remaining": {"3"}}, false},
		{"twice", http.Header{"X-Ratelimit-Limit": {"9"}, "X-Ratelimit-Remaining": {"3", "2"}, "X-Ratelimit-Reset": {"5"}}, false},
		{"empty", http.Header{"X-Ratelimit-Limit": {""}, "X-Ratelimit-Remaining": {""}, "X-Ratelimit-Reset": {""}}, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			want := http.Header{"X-Ratelimit-Limit": {"5"}, "X-Ratelimit-Remaining": {"4"}, "X-Ratelimit-Reset": {"30"}}
			if test.keep {
				want = test.header.Clone()
			}
			Write(one("own", 5, 60, Legacy, ""), test.header, true, 4, 30, "shared")
			compare(t, test.header, want)
		})
	}
}

// Whatever happens to the header of one answer, the next answer is right.
func TestAnswersShareNoValue(t *testing.T) {
	f := one("quota@docker", 100, 60, Both, name)
	want := http.Header{}
	Write(f, want, true, 99, 42, "shared")
	want = want.Clone()
	uncounted := http.Header{}
	WriteUncounted(f, uncounted, "open")
	wantUncounted := uncounted.Clone()

	for round := 0; round < 3; round++ {
		h := http.Header{}
		Write(f, h, true, 99, 42, "shared")
		compare(t, h, want)
		u := http.Header{}
		WriteUncounted(f, u, "open")
		compare(t, u, wantUncounted)
		for _, header := range []http.Header{h, u} {
			for key := range header {
				header[key][0] = "spoilt"
				header.Add(key, "added")
				header.Set(key, "replaced")
			}
		}
	}
}

func compare(t *testing.T, got, want http.Header) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("header is\n%v\nwant\n%v", got, want)
	}
}

func FuzzList(f *testing.F) {
	for _, seed := range []string{`"a";r=5;t=6`, `"own";r=1, "b"`, `"a\"`, `"a";x="own"`, `limit=1`, ``, `,`, `"`, `"a" , "b";c=?1`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, line string) {
		const own = `"own";r=1;t=2`
		once := list([]string{line}, []string{`"own"`}, own)
		if once != own && !strings.HasSuffix(once, ", "+own) {
			t.Fatalf("%q: own member is not the last of %q", line, once)
		}
		if !members.MatchString(once) {
			t.Errorf("%q: %q is no list", line, once)
		}
		again := list([]string{once}, []string{`"own"`}, own)
		if got, want := member.FindAllString(again, -1), member.FindAllString(once, -1); !reflect.DeepEqual(got, want) {
			t.Errorf("%q: members %q become %q", line, want, got)
		}
	})
}

func TestSilentFieldsAreNone(t *testing.T) {
	for _, style := range []Style{Both, IETF, Legacy, None} {
		for _, decision := range []string{"", name} {
			f := one("quota", 5, 60, style, decision)
			h := http.Header{}
			Write(f, h, true, 4, 60, "shared")
			if Silent(f) != (len(h) == 0) {
				t.Errorf("style %v, decision header %q: silent is %v, and the header %v", style, decision, Silent(f), h)
			}
		}
	}
}

// one returns the fields of a middleware with one policy.
func one(policy string, limit, window int64, style Style, decision string) *Fields {
	return New([]Policy{{policy, limit, window}}, &Settings{Style: style, DecisionHeader: decision})
}
