package status

// style gives the page its looks: quiet while all is well, and loud when it is not. What
// was held back is hatched, so that nothing is said by colour alone.
const style = `
:root {
  --paper: #f6f8f7; --sheet: #eaf0ee; --ink: #14201e; --soft: #53615e; --line: #cfd8d5;
  --pass: #1b7a72; --hold: #b13c1a; --hold-ground: #f6ddd3; --alarm: #a3300f; --on-alarm: #ffffff;
  color-scheme: light;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #0e1514; --sheet: #16211f; --ink: #e3ebe8; --soft: #98a7a3; --line: #2b3936;
    --pass: #4fb3a8; --hold: #f08c62; --hold-ground: #3a211a; --alarm: #b23a17; --on-alarm: #ffffff;
    color-scheme: dark;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 0.9375rem/1.45 "Helvetica Neue", Helvetica, Arial, sans-serif;
  font-variant-numeric: tabular-nums; -webkit-text-size-adjust: 100%;
}
.wrap { max-width: 76rem; margin: 0 auto; padding: 0 clamp(1rem, 4vw, 2.5rem); }
h1, h2, h3, dd, li, small, .where { overflow-wrap: anywhere; }
h1, h2, h3, p, ul, ol, dl, dd { margin: 0; padding: 0; }
ul, ol { list-style: none; }
small { font-size: 0.8125rem; color: var(--soft); font-weight: 400; }
code { font: 0.8125rem/1.2 ui-monospace, Menlo, Consolas, "Liberation Mono", monospace; }
.shapes { position: absolute; }
.unseen { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }

header { background: var(--sheet); }
.where { display: flex; flex-wrap: wrap; gap: 0.15rem 1.25rem; padding: 0.9rem 0; font-size: 0.8125rem; }
#when { margin-left: auto; }
.verdict {
  display: grid; grid-template-columns: auto 1fr; column-gap: clamp(0.9rem, 2.5vw, 1.75rem); align-items: center;
  padding: clamp(1rem, 3.5vw, 2.5rem) 0 clamp(1.5rem, 4vw, 3rem);
}
.mark { width: clamp(2.5rem, 6vw, 4rem); height: clamp(2.5rem, 6vw, 4rem); color: var(--pass); }
.thin, .thick { fill: none; stroke: currentColor; stroke-width: 2; stroke-linecap: round; stroke-linejoin: round; }
.thick { stroke-width: 3.5; }
.dashed { stroke-dasharray: 5 6; }
.solid { fill: currentColor; }
h1 { font-size: clamp(1.75rem, 5.5vw, 3.5rem); line-height: 1.05; letter-spacing: -0.025em; font-weight: 700; text-wrap: balance; }
#notes { grid-column: 2; margin-top: 0.6rem; font-size: clamp(0.9375rem, 1.6vw, 1.0625rem); max-width: 46rem; }
#notes li + li { margin-top: 0.25rem; }
[data-level=bad] { background: var(--alarm); color: var(--on-alarm); }
[data-level=off], [data-level=dry] { background: var(--ink); color: var(--paper); }
[data-level=lost] { background: var(--soft); color: var(--paper); }
header:not([data-level=well]) .mark { color: inherit; }
[data-level=lost] ~ main { filter: grayscale(1); }

section { display: grid; gap: 1.25rem; padding: 1.5rem 0 2.25rem; border-top: 1px solid var(--line); }
main > section:first-child { border-top: 0; }
h2 { font-size: 1.125rem; line-height: 1.25; letter-spacing: -0.01em; }
h2 small { display: block; }
h3 { font-size: 0.9375rem; line-height: 1.35; margin-bottom: 0.5rem; }
.now { display: flex; gap: 2rem; margin-top: 0.9rem; }
.now > div { display: flex; flex-direction: column-reverse; }
.now dd { font-size: 2rem; line-height: 1.1; letter-spacing: -0.02em; font-weight: 700; }
.now dt, .facts dt { font-size: 0.8125rem; color: var(--soft); }
.key { margin-right: 0.45em; vertical-align: -0.1em; }

.passed { fill: var(--pass); }
.held { fill: url(#hatch); }
.held-ground { fill: var(--hold-ground); }
.hatching { stroke: var(--hold); stroke-width: 4.5; }
.edge { fill: none; stroke: var(--hold); stroke-width: 1.5; }
.away { fill: none; stroke: var(--alarm); stroke-width: 1; stroke-dasharray: 2 3; }
.away-ground { fill: var(--line); opacity: 0.55; }
.grid { stroke: var(--line); stroke-width: 1; }
#chart { display: block; }
#chart text { font-size: 12px; fill: var(--soft); paint-order: stroke; stroke: var(--paper); stroke-width: 4px; stroke-linejoin: round; }

.aside .facts { margin-top: 0.75rem; }
.facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(7.5rem, 1fr)); gap: 0.75rem 1.5rem; }
article + article { margin-top: 1.75rem; }
.state { font-weight: 400; }
.state[data-state=away] { font-weight: 700; color: var(--hold); }
.changes { margin-top: 1rem; }
.changes li { display: grid; grid-template-columns: 5.5rem 1fr; gap: 0 0.75rem; padding: 0.4rem 0; border-top: 1px solid var(--line); }
.changes time { color: var(--soft); }
.changes [data-is=why] { grid-column: 2; }
.changes [data-is=why]:empty { display: none; }

.tables { display: grid; gap: 2rem 2.5rem; min-width: 0; }
.tables > div { min-width: 0; }
table { width: 100%; border-collapse: collapse; text-align: left; }
th, td { padding: 0.45rem 0.75rem 0.45rem 0; vertical-align: baseline; font-weight: 400; border-top: 1px solid var(--line); }
th:last-child, td:last-child { padding-right: 0; }
thead th { font-size: 0.8125rem; color: var(--soft); border-top: 0; padding-top: 0; vertical-align: bottom; }
tbody small { display: block; }
tbody small:empty { display: none; }
tbody code { white-space: nowrap; }
.number { text-align: right; white-space: nowrap; }
.free { white-space: normal; }
.wide { width: 40%; padding-right: 1rem; }
.bar { display: block; min-width: 2.5rem; }
.rail { fill: var(--line); }
.keyed { padding-left: 1.25rem; text-indent: -1.25rem; }
.keyed .key { width: 11px; margin-right: calc(1.25rem - 11px); }
.keyed small { text-indent: 0; }
.none { color: var(--soft); }
footer { padding-top: 0.5rem; padding-bottom: 2.5rem; color: var(--soft); font-size: 0.8125rem; }

@media (min-width: 30rem) {
  .nearest .number small { display: inline; }
  .free { white-space: nowrap; }
  .facts { grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); }
  .changes li { grid-template-columns: 5.5rem 2.5rem 1fr; }
  .changes [data-is=why] { grid-column: 3; }
}
@media (min-width: 62rem) {
  section { grid-template-columns: 12.5rem minmax(0, 1fr); gap: 2.5rem; }
  .tables { grid-template: auto 1fr / minmax(0, 1fr) minmax(0, 1fr); }
  .nearest { grid-area: 1 / 2 / 3 / 3; }
  .aside .facts { grid-template-columns: 1fr; margin-top: 1rem; }
  .now { margin-top: 1.5rem; }
}
`
