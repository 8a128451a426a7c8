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
<meta name="color-scheme" content="light dark">
<title>Gatequota</title>
<link rel="icon" id="icon" href="data:,">
<style>` + style + `</style>
</head>
<body>
` + body + `<script>` + script + `</script>
</body>
</html>
`

// policy lets the page have its own style and script, the icon that stands in it, and
// what its own host answers, and nothing else. The icon keeps browsers from asking the
// application for one.
var policy = "default-src 'none'; script-src '" + digest(script) + "'; style-src '" + digest(style) +
	"'; img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// digest returns what names a text of the page in its policy.
func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// body is what stands in the page. What is empty here the script fills in: by id what is
// there once, by data-is what it makes of a template for each store, scope or row.
const body = `<svg width="0" height="0" class="shapes" aria-hidden="true">
<defs>
<pattern id="hatch" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><path d="M0 0V5" class="hatching"/></pattern>
<symbol id="mark-wait" viewBox="0 0 40 40"><circle cx="20" cy="20" r="17" class="thin dashed"/></symbol>
<symbol id="mark-well" viewBox="0 0 40 40"><circle cx="20" cy="20" r="17" class="thin"/><path d="M12 20.5l6 6L29 14.500" class="thick"/></symbol>
<symbol id="mark-bad" viewBox="0 0 40 40"><path d="M20 3.500L38 35H2z" class="thin"/><path d="M20 14v10M20 28v3" class="thick"/></symbol>
<symbol id="mark-off" viewBox="0 0 40 40"><circle cx="20" cy="20" r="17" class="thin"/><path d="M8 32L32 8" class="thick"/></symbol>
<symbol id="mark-dry" viewBox="0 0 40 40"><circle cx="20" cy="20" r="17" class="thin"/><path d="M20 3a17 17 0 0 1 0 34z" class="solid"/></symbol>
<symbol id="mark-lost" viewBox="0 0 40 40"><circle cx="20" cy="20" r="17" class="thin dashed"/><path d="M13 13l14 14M27 13L13 27" class="thick"/></symbol>
</defs>
</svg>

<header id="band" data-level="wait">
<div class="wrap">
<p class="where"><strong>Gatequota</strong> <span id="where"></span> <span id="when"></span></p>
<div class="verdict">
<svg class="mark" width="56" height="56" aria-hidden="true"><use id="mark" href="#mark-wait"></use></svg>
<div role="status"><h1 id="headline">Asking the gateway</h1></div>
<ul id="notes"></ul>
</div>
<noscript><p>This page needs JavaScript. The same stands as JSON at this address with ?format=json.</p></noscript>
</div>
</header>

<main class="wrap" id="main" hidden>
<section aria-labelledby="rate-title">
<div class="aside">
<h2 id="rate-title">Decisions a&nbsp;second</h2>
<dl class="now">
<div><dt><svg class="key" width="14" height="14" aria-hidden="true"><rect width="14" height="14" class="passed"></rect></svg>passed</dt><dd id="passed"></dd></div>
<div><dt><svg class="key" width="14" height="14" aria-hidden="true"><rect width="14" height="14" class="held-ground"></rect><rect width="14" height="14" class="held"></rect></svg>held back</dt><dd id="held"></dd></div>
</dl>
</div>
<div class="chart">
<svg id="chart" role="img" aria-label="Decisions a second" width="100%" height="208"></svg>
</div>
</section>

<section aria-labelledby="stores-title">
<div class="aside"><h2 id="stores-title">Store</h2></div>
<div id="stores"></div>
</section>

<div id="scopes"></div>
</main>

<footer class="wrap"><p id="foot"></p></footer>

<template id="store">
<article>
<h3><span data-is="endpoint"></span> <span class="state" data-is="state"></span></h3>
<dl class="facts" data-is="facts"></dl>
<ol class="changes" data-is="changes"></ol>
</article>
</template>

<template id="change">
<li><time data-is="time"></time> <strong data-is="to"></strong> <span data-is="why"></span></li>
</template>

<template id="fact">
<div><dt data-is="name"></dt><dd data-is="value"></dd></div>
</template>

<template id="scope">
<section>
<div class="aside">
<h2><small>Scope</small> <span data-is="name"></span></h2>
<dl class="facts" data-is="facts"></dl>
</div>
<div class="tables">
<div>
<h3>Limits in force</h3>
<table>
<thead><tr><th scope="col">Limit</th><th scope="col">How it is counted</th></tr></thead>
<tbody data-is="limits"></tbody>
</table>
</div>
<div class="nearest">
<h3>Nearest to their limits</h3>
<table>
<thead><tr><th scope="col">Client</th><th scope="col" class="wide"><span class="unseen">Part of the limit</span></th><th scope="col" class="number">Used</th><th scope="col" class="number">Free in</th></tr></thead>
<tbody data-is="clients"></tbody>
</table>
<p class="none" data-is="no-clients">No client has used anything of a limit.</p>
</div>
<div>
<h3>Decisions</h3>
<table>
<thead><tr><th scope="col">What became of requests</th><th scope="col" class="number">In all</th><th scope="col" class="number">A second</th></tr></thead>
<tbody data-is="decisions"></tbody>
</table>
<p class="none" data-is="no-decisions">No request has come yet.</p>
</div>
</div>
</section>
</template>

<template id="limit">
<tr><th scope="row"><strong data-is="limit"></strong> <small data-is="for"></small></th><td><span data-is="how"></span> <small data-is="failure"></small></td></tr>
</template>

<template id="client">
<tr><th scope="row"><code data-is="client"></code> <small data-is="count"></small></th><td class="wide"><svg class="bar" width="100%" height="10" aria-hidden="true"><rect width="100%" height="10" data-is="rail"></rect><rect height="10" data-is="bar"></rect></svg></td><td class="number"><span data-is="used"></span> <small data-is="of"></small></td><td class="number free" data-is="reset"></td></tr>
</template>

<template id="decision">
<tr><th scope="row" class="keyed"><svg class="key" width="11" height="11" aria-hidden="true"><rect width="11" height="11" data-is="ground"></rect><rect width="11" height="11" data-is="key"></rect></svg><span data-is="what"></span> <small><code data-is="label"></code> <span data-is="rule"></span></small></th><td class="number" data-is="total"></td><td class="number" data-is="rate"></td></tr>
</template>
`
