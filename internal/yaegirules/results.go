package yaegirules

import (
	"go/ast"
	"go/token"
	"go/types"
)

// results reports where a function reads a named result that it may not have assigned
// before. A return without values reads all of them.
func (c *checker) results(signature *ast.FuncType, body *ast.BlockStmt) {
	if signature.Results == nil || body == nil {
		return
	}
	f := &flow{checker: c, named: map[types.Object]bool{}}
	for _, field := range signature.Results.List {
		for _, name := range field.Names {
			if object := c.info.Defs[name]; object != nil && name.Name != "_" {
				f.named[object] = true
			}
		}
	}
	if len(f.named) > 0 {
		f.block(body.List, assigned{})
	}
}

// assigned are the results that have been assigned wherever this point is reached. It is
// nil where no point is reached, behind a return.
type assigned map[types.Object]bool

func (a assigned) with(object types.Object) assigned {
	if a == nil {
		return nil
	}
	more := assigned{object: true}
	for each := range a {
		more[each] = true
	}
	return more
}

// both returns what is assigned where two ways come together.
func both(a, b assigned) assigned {
	if a == nil {
		return b
	}
	if b == nil {
		return a
	}
	common := assigned{}
	for object := range a {
		if b[object] {
			common[object] = true
		}
	}
	return common
}

// flow follows one function.
type flow struct {
	*checker
	named    map[types.Object]bool
	breaks   []assigned // what is assigned at the breaks of each statement around
	reported map[types.Object]bool
}

func (f *flow) stale(pos token.Pos, object types.Object) {
	if f.reported[object] {
		return
	}
	if f.reported == nil {
		f.reported = map[types.Object]bool{}
	}
	f.reported[object] = true
	f.report(pos, "result", "the result "+object.Name()+" may be read before it is assigned")
}

// reads reports the results that a node reads and a does not have.
func (f *flow) reads(node ast.Node, a assigned) {
	if node == nil || a == nil {
		return
	}
	ast.Inspect(node, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.AssignStmt: // in a function literal
			f.assignment(node, a)
			return false
		case *ast.Ident:
			object := f.info.Uses[node]
			if f.named[object] && !a[object] {
				f.stale(node.Pos(), object)
			}
		}
		return true
	})
}

func (f *flow) assignment(statement *ast.AssignStmt, a assigned) assigned {
	for _, value := range statement.Rhs {
		f.reads(value, a)
	}
	after := a
	for _, target := range statement.Lhs {
		name, ok := ast.Unparen(target).(*ast.Ident)
		if ok && (statement.Tok == token.ASSIGN || statement.Tok == token.DEFINE) {
			if object := f.info.Uses[name]; f.named[object] {
				after = after.with(object)
			}
			continue
		}
		f.reads(target, a)
	}
	return after
}

func (f *flow) block(statements []ast.Stmt, a assigned) assigned {
	for _, statement := range statements {
		a = f.statement(statement, a)
	}
	return a
}

// statement returns what is assigned behind a statement.
func (f *flow) statement(statement ast.Stmt, a assigned) assigned {
	switch s := statement.(type) {
	case nil:
	case *ast.AssignStmt:
		return f.assignment(s, a)
	case *ast.BlockStmt:
		return f.block(s.List, a)
	case *ast.LabeledStmt:
		return f.statement(s.Stmt, a)
	case *ast.IfStmt:
		a = f.statement(s.Init, a)
		f.reads(s.Cond, a)
		return both(f.block(s.Body.List, a), f.statement(s.Else, a))
	case *ast.ForStmt:
		a = f.statement(s.Init, a)
		if s.Cond != nil {
			f.reads(s.Cond, a)
		}
		body, left := f.within(func() assigned { return f.block(s.Body.List, a) })
		f.statement(s.Post, body)
		if s.Cond == nil {
			return left
		}
		return both(a, left)
	case *ast.RangeStmt:
		f.reads(s.X, a)
		_, left := f.within(func() assigned { return f.block(s.Body.List, a) })
		return both(a, left)
	case *ast.SwitchStmt:
		a = f.statement(s.Init, a)
		if s.Tag != nil {
			f.reads(s.Tag, a)
		}
		return f.clauses(s.Body, a)
	case *ast.TypeSwitchStmt:
		a = f.statement(s.Init, a)
		return f.clauses(s.Body, f.statement(s.Assign, a))
	case *ast.ReturnStmt:
		for _, value := range s.Results {
			f.reads(value, a)
		}
		if len(s.Results) == 0 && a != nil {
			for object := range f.named {
				if !a[object] {
					f.stale(s.Pos(), object)
				}
			}
		}
		return nil
	case *ast.BranchStmt:
		if s.Tok == token.BREAK {
			for i := range f.breaks {
				if s.Label != nil || i == len(f.breaks)-1 {
					f.breaks[i] = both(f.breaks[i], a)
				}
			}
		}
		if s.Tok == token.FALLTHROUGH {
			return a
		}
		return nil
	case *ast.DeferStmt:
		// A literal runs when the results have been assigned by the return.
		if _, ok := ast.Unparen(s.Call.Fun).(*ast.FuncLit); !ok {
			f.reads(s.Call.Fun, a)
		}
		for _, argument := range s.Call.Args {
			f.reads(argument, a)
		}
	default:
		f.reads(s, a)
	}
	return a
}

// within runs what a break leads out of. left is what is assigned at its breaks.
func (f *flow) within(run func() assigned) (end, left assigned) {
	f.breaks = append(f.breaks, nil)
	end = run()
	left = f.breaks[len(f.breaks)-1]
	f.breaks = f.breaks[:len(f.breaks)-1]
	return end, left
}

func (f *flow) clauses(body *ast.BlockStmt, a assigned) assigned {
	end, left := f.within(func() assigned {
		var end, before assigned
		other := a // where no case applies
		for _, each := range body.List {
			clause := each.(*ast.CaseClause)
			if clause.List == nil {
				other = nil
			}
			for _, expr := range clause.List {
				f.reads(expr, a)
			}
			start := a
			if before != nil {
				start = both(a, before)
			}
			before = nil
			after := f.block(clause.Body, start)
			if n := len(clause.Body); n > 0 {
				if branch, ok := clause.Body[n-1].(*ast.BranchStmt); ok && branch.Tok == token.FALLTHROUGH {
					before = after
					continue
				}
			}
			end = both(end, after)
		}
		return both(end, other)
	})
	return both(end, left)
}
