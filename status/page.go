package status

import (
	"crypto/sha256"
	"encoding/base64"
)

// Page is the whole page. What it shows it asks for itself, as JSON of its own address.
const Page = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Gatequota</title>
<style>` + style + `</style>
</head>
` + body + `
<script>` + script + `</script>
</html>
`

// policy lets the page have its own style and script, ask its own host, and nothing else.
var policy = "default-src 'none'; script-src '" + digest(script) + "'; style-src '" + digest(style) +
	"'; img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// digest returns what names a text of the page in its policy.
func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

const style = `
body { font: 15px/1.5 sans-serif; margin: 1rem; }
`

const body = `<body>
<h1>Gatequota</h1>
<pre id="all"></pre>
`

const script = `
'use strict';
async function refresh() {
  const answer = await fetch(location.pathname, { headers: { Accept: 'application/json' } });
  document.getElementById('all').textContent = JSON.stringify(await answer.json(), null, 2);
}
refresh();
setInterval(refresh, 2000);
`
