// Package yaegirules finds what the plugin must not contain because Yaegi v0.16.1,
// which interprets it inside Traefik, does something else with it than Go does. All
// of these compile, and most pass every compiled test.
//
// The rules, each with what happens otherwise:
//
//   - select: the cases of a select statement are shared by all goroutines that run
//     it, so that one gets what another received, or the process panics.
//   - receive: a case that receives with a second result from a field hangs.
//   - parameter: a function with a parameter without a name panics when called. (A
//     receiver needs none.)
//   - assign: of several values that are assigned at once some are lost if one of
//     them comes out of a call or a conversion. (Several results of one call are fine, and so are
//     definitions.) With nil among them it panics.
//   - defer: a deferred call deadlocks when it runs a function literal that the same
//     function made, be it the callee, an argument, or used by a deferred literal.
//     (A deferred literal that uses none is fine.)
//   - result: named results are not zeroed from one turn of a loop in the caller to the
//     next: what is appended to them, added to them, or left as it was is so on top of
//     what the turn before returned. So a named result is assigned before it is read,
//     also by a return. (Variables that are declared in the function are zeroed.)
//   - builtin: min, max and clear do not load.
//   - range: a range over an integer or a function ends the process at load, or does
//     not load.
//   - recover: a panic in a goroutine, timer callbacks among them, ends the whole
//     gateway unless a deferred function of the goroutine itself recovers from it.
//   - build: build constraints and compiler directives are ignored: the file loads
//     all the same, and its functions replace the right ones without a word.
//   - import: unsafe, syscall, embed, iter, os/exec and C are absent.
//   - symbol: some symbols of the standard library that have type parameters are
//     absent or broken.
//   - generic: declared types with type parameters are broken.
//   - error: telling our own error types apart, by errors.As or a type switch, and
//     errors that are structs and not pointers to them, panics or takes the wrong
//     branch.
//   - writer: a type of ours in the place of an http.ResponseWriter has lost Flusher
//     and Hijacker, and with them streams and WebSocket.
//   - go.mod: its language version is 1.20, which gives loop variables in compiled
//     tests the meaning that they have in the interpreter.
//   - types: what cannot be type-checked cannot be judged.
package yaegirules

import (
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sort"
	"strconv"
	"strings"
)

// A Finding is one place that breaks a rule.
type Finding struct {
	Position token.Position
	Rule     string // as listed in the documentation of the package
	Text     string
}

func (f Finding) String() string {
	return fmt.Sprintf("%s: %s (%s)", f.Position, f.Text, f.Rule)
}

// notPlugin are the directories of the module that Traefik does not load.
var notPlugin = map[string]bool{
	"docs": true, "e2e": true, "examples": true, "internal": true, "k6": true, "scripts": true, "node_modules": true,
}

// CheckModule checks all code that is loaded with the plugin whose go.mod lies in
// root: its packages and those in vendor, without their tests. It needs the go
// command, which compiles what these packages import.
func CheckModule(root string) ([]Finding, error) {
	findings, err := checkLanguage(filepath.Join(root, "go.mod"))
	if err != nil {
		return nil, err
	}
	dirs, err := packageDirs(root)
	if err != nil {
		return nil, err
	}
	imports, err := exported(root, "./...")
	if err != nil {
		return nil, err
	}
	for _, dir := range dirs {
		names, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			return nil, err
		}
		sources := map[string]string{}
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			text, err := os.ReadFile(name)
			if err != nil {
				return nil, err
			}
			sources[name] = string(text)
		}
		found, err := checkPackage(sources, imports)
		if err != nil {
			return nil, err
		}
		findings = append(findings, found...)
		assembly, err := filepath.Glob(filepath.Join(dir, "*.s"))
		if err != nil {
			return nil, err
		}
		for _, name := range assembly {
			findings = append(findings, Finding{token.Position{Filename: name}, "build", "assembly is not loaded"})
		}
	}
	return findings, nil
}

var language = regexp.MustCompile(`(?m)^go[ \t]+(\S+)[ \t]*(?://.*)?$`)

func checkLanguage(name string) ([]Finding, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	match := language.FindSubmatch(text)
	if match == nil || string(match[1]) != "1.20" {
		return []Finding{{token.Position{Filename: name}, "go.mod", "the language version is not 1.20"}}, nil
	}
	return nil, nil
}

// packageDirs returns the directories under root that hold code of the plugin.
func packageDirs(root string) ([]string, error) {
	var dirs []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		if path != root {
			name := entry.Name()
			_, err := os.Stat(filepath.Join(path, "go.mod"))
			switch {
			case strings.HasPrefix(name, "."), strings.HasPrefix(name, "_"), name == "testdata", err == nil,
				filepath.Dir(path) == root && notPlugin[name]:
				return filepath.SkipDir
			}
		}
		dirs = append(dirs, path)
		return nil
	})
	return dirs, err
}

// exported returns an importer for whatever the packages that the patterns name
// import, directly or not.
func exported(dir string, patterns ...string) (types.Importer, error) {
	args := append([]string{"list", "-e", "-export", "-deps", "-f", "{{.ImportPath}}\t{{.Export}}"}, patterns...)
	command := exec.Command("go", args...)
	command.Dir = dir
	output, err := command.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return nil, fmt.Errorf("listing imports: %w: %s", err, exit.Stderr)
		}
		return nil, fmt.Errorf("listing imports: %w", err)
	}
	files := map[string]string{}
	for _, line := range strings.Split(strings.TrimSpace(string(output)), "\n") {
		path, file, _ := strings.Cut(line, "\t")
		files[path] = file
	}
	lookup := func(path string) (io.ReadCloser, error) {
		if files[path] == "" {
			return nil, fmt.Errorf("no export data of %q", path)
		}
		return os.Open(files[path])
	}
	return importer.ForCompiler(token.NewFileSet(), "gc", lookup), nil
}

// checkPackage checks one package, given as the text of its files by name.
func checkPackage(sources map[string]string, imports types.Importer) ([]Finding, error) {
	var names []string
	for name := range sources {
		names = append(names, name)
	}
	sort.Strings(names)
	c := &checker{fset: token.NewFileSet(), literals: map[types.Object]bool{}, bodies: map[types.Object]*ast.BlockStmt{}}
	var files []*ast.File
	for _, name := range names {
		file, err := parser.ParseFile(c.fset, name, sources[name], parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	if len(files) == 0 {
		return nil, nil
	}
	c.info = &types.Info{
		Types: map[ast.Expr]types.TypeAndValue{},
		Defs:  map[*ast.Ident]types.Object{},
		Uses:  map[*ast.Ident]types.Object{},
	}
	config := types.Config{Importer: imports, Error: func(err error) {
		var typeError types.Error
		if errors.As(err, &typeError) {
			c.report(typeError.Pos, "types", typeError.Msg)
		}
	}}
	c.pkg, _ = config.Check(files[0].Name.Name, c.fset, files, c.info) // its errors were reported
	for _, file := range files {
		ast.Inspect(file, c.collect)
	}
	for _, file := range files {
		c.directives(file)
		ast.Inspect(file, c.visit)
	}
	c.declared()
	return c.findings, nil
}

// checker is at work on one package.
type checker struct {
	fset     *token.FileSet
	info     *types.Info
	pkg      *types.Package
	literals map[types.Object]bool           // variables and fields that hold a function literal
	bodies   map[types.Object]*ast.BlockStmt // functions and methods
	findings []Finding
}

func (c *checker) report(pos token.Pos, rule, text string) {
	c.findings = append(c.findings, Finding{c.fset.Position(pos), rule, text})
}

// object returns what an expression names, or nil.
func (c *checker) object(expr ast.Expr) types.Object {
	switch expr := ast.Unparen(expr).(type) {
	case *ast.Ident:
		if object := c.info.Defs[expr]; object != nil {
			return object
		}
		return c.info.Uses[expr]
	case *ast.SelectorExpr:
		return c.info.Uses[expr.Sel]
	}
	return nil
}

// std reports whether an expression names a symbol of a package outside of this one.
func (c *checker) std(expr ast.Expr, path, name string) bool {
	object := c.object(expr)
	return object != nil && object.Pkg() != nil && object.Pkg().Path() == path && object.Name() == name
}

// own reports whether t is declared by the plugin or by what it vendors: all paths
// of modules have a dot in their first element, those of the standard library none.
func (c *checker) own(t types.Type) bool {
	if pointer, ok := t.(*types.Pointer); ok {
		t = pointer.Elem()
	}
	named, ok := t.(*types.Named)
	if !ok || named.Obj().Pkg() == nil {
		return false
	}
	first, _, _ := strings.Cut(named.Obj().Pkg().Path(), "/")
	return named.Obj().Pkg() == c.pkg || strings.Contains(first, ".")
}

// collect notes which variables hold literals, and the bodies of functions.
func (c *checker) collect(node ast.Node) bool {
	note := func(name, value ast.Expr) {
		if _, ok := ast.Unparen(value).(*ast.FuncLit); ok {
			if object := c.object(name); object != nil && object.Parent() != c.pkg.Scope() {
				c.literals[object] = true
			}
		}
	}
	switch node := node.(type) {
	case *ast.AssignStmt:
		if len(node.Lhs) == len(node.Rhs) {
			for i := range node.Lhs {
				note(node.Lhs[i], node.Rhs[i])
			}
		}
	case *ast.ValueSpec:
		for i := range node.Values {
			if len(node.Names) == len(node.Values) {
				note(node.Names[i], node.Values[i])
			}
		}
	case *ast.KeyValueExpr:
		note(node.Key, node.Value)
	case *ast.FuncDecl:
		if node.Body != nil {
			c.bodies[c.info.Defs[node.Name]] = node.Body
		}
	}
	return true
}

// directives looks at what speaks to the compiler and not to the reader.
func (c *checker) directives(file *ast.File) {
	for _, group := range file.Comments {
		for _, comment := range group.List {
			constraint := strings.HasPrefix(comment.Text, "//go:build") || strings.HasPrefix(comment.Text, "// +build")
			if constraint && comment.Pos() < file.Package {
				c.report(comment.Pos(), "build", "build constraints are ignored")
			}
			if strings.HasPrefix(comment.Text, "//go:linkname") || strings.HasPrefix(comment.Text, "//go:embed") {
				c.report(comment.Pos(), "build", "compiler directives are ignored")
			}
		}
	}
}

var absent = map[string]bool{"unsafe": true, "syscall": true, "embed": true, "iter": true, "os/exec": true, "C": true}

// broken are the beginnings of names that do not work although they can be imported.
var broken = map[string][]string{
	"sync/atomic": {"Pointer"},
	"sync":        {"OnceValue"},
	"slices":      {"Sort"},
	"maps":        {"Clone"},
}

func (c *checker) visit(node ast.Node) bool {
	switch node := node.(type) {
	case *ast.ImportSpec:
		if path, err := strconv.Unquote(node.Path.Value); err == nil && absent[path] {
			c.report(node.Pos(), "import", "package "+path+" is absent")
		}
	case *ast.SelectStmt:
		c.report(node.Pos(), "select", "select shares its cases between goroutines")
	case *ast.CommClause:
		c.receive(node)
	case *ast.FuncDecl:
		c.parameters(node.Type)
		c.results(node.Type, node.Body)
	case *ast.FuncLit:
		c.parameters(node.Type)
		c.results(node.Type, node.Body)
	case *ast.AssignStmt:
		c.assign(node)
	case *ast.DeferStmt:
		c.deferred(node)
	case *ast.GoStmt:
		c.recovers(node.Pos(), node.Call.Fun, "a goroutine")
	case *ast.CallExpr:
		c.call(node)
	case *ast.Ident:
		if _, ok := c.info.Uses[node].(*types.Builtin); ok && (node.Name == "min" || node.Name == "max" || node.Name == "clear") {
			c.report(node.Pos(), "builtin", node.Name+" does not exist in Go 1.20")
		}
	case *ast.RangeStmt:
		c.ranges(node)
	case *ast.SelectorExpr:
		if object := c.info.Uses[node.Sel]; object != nil && object.Pkg() != nil {
			for _, prefix := range broken[object.Pkg().Path()] {
				if strings.HasPrefix(object.Name(), prefix) {
					c.report(node.Pos(), "symbol", object.Pkg().Path()+"."+object.Name()+" is absent or broken")
				}
			}
		}
	case *ast.TypeSpec:
		if node.TypeParams != nil {
			c.report(node.Pos(), "generic", "a type with type parameters")
		}
	case *ast.TypeSwitchStmt:
		c.typeSwitch(node)
	}
	return true
}

func (c *checker) receive(clause *ast.CommClause) {
	assign, ok := clause.Comm.(*ast.AssignStmt)
	if !ok || len(assign.Lhs) != 2 || len(assign.Rhs) != 1 {
		return
	}
	receive, ok := ast.Unparen(assign.Rhs[0]).(*ast.UnaryExpr)
	if !ok {
		return
	}
	if _, ok := ast.Unparen(receive.X).(*ast.SelectorExpr); ok {
		c.report(clause.Pos(), "receive", "a case that receives two values from a field hangs")
	}
}

func (c *checker) assign(statement *ast.AssignStmt) {
	if statement.Tok != token.ASSIGN || len(statement.Rhs) < 2 {
		return
	}
	calls := false
	for _, value := range statement.Rhs {
		if c.info.Types[value].IsNil() {
			c.report(statement.Pos(), "assign", "an assignment of several values, one of them nil")
			return
		}
		ast.Inspect(value, func(node ast.Node) bool {
			switch node.(type) {
			case *ast.FuncLit:
				return false
			case *ast.CallExpr:
				calls = true
			}
			return true
		})
	}
	if calls {
		c.report(statement.Pos(), "assign", "an assignment of several values, one of them out of a call")
	}
}

func (c *checker) deferred(statement *ast.DeferStmt) {
	if c.literals[c.object(statement.Call.Fun)] {
		c.report(statement.Pos(), "defer", "a variable that holds a function literal is deferred")
	}
	for _, argument := range statement.Call.Args {
		if _, ok := ast.Unparen(argument).(*ast.FuncLit); ok || c.literals[c.object(argument)] {
			c.report(argument.Pos(), "defer", "a deferred call is given a function literal")
		}
	}
	literal, ok := ast.Unparen(statement.Call.Fun).(*ast.FuncLit)
	if !ok {
		return
	}
	ast.Inspect(literal.Body, func(node ast.Node) bool {
		ident, ok := node.(*ast.Ident)
		if !ok {
			return true
		}
		// One that is made in the deferred literal itself is fine.
		object := c.info.Uses[ident]
		if c.literals[object] && !(literal.Pos() <= object.Pos() && object.Pos() < literal.End()) {
			c.report(ident.Pos(), "defer", "a deferred literal uses a variable that holds a function literal")
		}
		return true
	})
}

func (c *checker) parameters(signature *ast.FuncType) {
	for _, field := range signature.Params.List {
		if len(field.Names) == 0 {
			c.report(field.Pos(), "parameter", "a parameter without a name; write _")
		}
	}
}

func (c *checker) ranges(statement *ast.RangeStmt) {
	t := c.info.TypeOf(statement.X)
	if t == nil {
		return // reported as a type error
	}
	switch t := t.Underlying().(type) {
	case *types.Basic:
		if t.Info()&types.IsInteger != 0 {
			c.report(statement.Pos(), "range", "a range over an integer")
		}
	case *types.Signature:
		c.report(statement.Pos(), "range", "a range over a function")
	}
}

func (c *checker) call(call *ast.CallExpr) {
	switch {
	case len(call.Args) != 2:
	case c.std(call.Fun, "time", "AfterFunc"), c.std(call.Fun, "context", "AfterFunc"):
		c.recovers(call.Pos(), call.Args[1], "a callback")
	case c.std(call.Fun, "errors", "As"):
		if pointer, ok := c.info.TypeOf(call.Args[1]).(*types.Pointer); ok && c.own(pointer.Elem()) {
			c.report(call.Pos(), "error", "errors.As into a type of our own")
		}
	}
}

// recovers reports function, which runs in a goroutine of its own, unless one of the
// statements of its body defers a function that calls recover. What cannot be seen
// here, such as a function of another package, does not recover.
func (c *checker) recovers(pos token.Pos, function ast.Expr, what string) {
	body := c.body(function)
	if body == nil {
		c.report(pos, "recover", what+" runs a function that is not in sight")
		return
	}
	for _, statement := range body.List {
		if deferred, ok := statement.(*ast.DeferStmt); ok && c.callsRecover(c.body(deferred.Call.Fun)) {
			return
		}
	}
	c.report(pos, "recover", what+" does not recover from a panic")
}

// body returns what a function of this package, or a literal, does.
func (c *checker) body(function ast.Expr) *ast.BlockStmt {
	if literal, ok := ast.Unparen(function).(*ast.FuncLit); ok {
		return literal.Body
	}
	return c.bodies[c.object(function)]
}

// callsRecover reports whether body calls recover itself, which alone has an effect.
func (c *checker) callsRecover(body *ast.BlockStmt) bool {
	if body == nil {
		return false
	}
	found := false
	ast.Inspect(body, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.FuncLit:
			return false
		case *ast.CallExpr:
			if builtin, ok := c.object(node.Fun).(*types.Builtin); ok && builtin.Name() == "recover" {
				found = true
			}
		}
		return !found
	})
	return found
}

func (c *checker) typeSwitch(statement *ast.TypeSwitchStmt) {
	var operand ast.Expr
	switch assign := statement.Assign.(type) {
	case *ast.ExprStmt:
		operand = assign.X
	case *ast.AssignStmt:
		operand = assign.Rhs[0]
	}
	assertion, ok := ast.Unparen(operand).(*ast.TypeAssertExpr)
	if !ok {
		return
	}
	if t := c.info.TypeOf(assertion.X); t != nil && isError(t) {
		c.report(statement.Pos(), "error", "a type switch on an error")
		return
	}
	for _, clause := range statement.Body.List {
		for _, expr := range clause.(*ast.CaseClause).List {
			if t := c.info.TypeOf(expr); t != nil && isError(t) {
				c.report(expr.Pos(), "error", "a case that is an error")
			}
		}
	}
}

func isError(t types.Type) bool {
	return types.Implements(t, types.Universe.Lookup("error").Type().Underlying().(*types.Interface))
}

// declared looks at the types that the package declares at its top.
func (c *checker) declared() {
	if c.pkg == nil {
		return
	}
	var writer *types.Interface
	for _, imported := range c.pkg.Imports() {
		if imported.Path() == "net/http" {
			writer = imported.Scope().Lookup("ResponseWriter").Type().Underlying().(*types.Interface)
		}
	}
	for ident, object := range c.info.Defs {
		name, ok := object.(*types.TypeName)
		if !ok || name.IsAlias() || types.IsInterface(name.Type()) {
			continue
		}
		if writer != nil && (types.Implements(name.Type(), writer) || types.Implements(types.NewPointer(name.Type()), writer)) {
			c.report(ident.Pos(), "writer", "a type in the place of an http.ResponseWriter")
		}
		if _, ok := name.Type().Underlying().(*types.Struct); ok && isError(name.Type()) {
			c.report(ident.Pos(), "error", "an error that is a struct and not a pointer to one")
		}
	}
}
