//! The text of a skeleton, for a person to read and edit. One statement a line, nested by braces.
//!
//! ```text
//! skeleton 1
//! file "srad" "5ac2…"
//! fn "main" @ "srad":10e0 calls 1 {
//!   input `ret@1118` = 2048 "tests of loops, n = 31"
//!   var iv1615_r11 = `0` step `1` in L1615
//!   loop L1660 bound `ret@1118` test b17e0 seen 2048 exits 1 {
//!     b1660: comp int 22 fp64 4; ld 8 x 3; st 8 x 1 -> b16e4:1
//!   }
//! }
//! ```
//!
//! Numbers have six digits and are parsed back to equal values. Here are
//! the parts of the text and the printing; `parse` reads the text. A loop
//! may bear edits: `vector LANES`, `unroll N`, `remove`, `parallel N`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::form::Form;

/// A number with six digits, as in the text.
pub fn rounded(number: f64) -> f64 {
    format!("{number:.5e}").parse().unwrap_or(number)
}

/// A skeleton.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Skeleton {
    /// Files by name, with build ids.
    pub files: Vec<(String, String)>,
    /// Functions.
    pub functions: Vec<FunctionText>,
}

/// Place of code: a file by name, and an address of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location {
    /// Name of the file.
    pub file: String,
    /// Address in the file.
    pub address: u64,
}

/// A function.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FunctionText {
    /// Name.
    pub name: String,
    /// Entry.
    pub at: Location,
    /// Calls in the observed run from outside the text: 1 for the root.
    pub calls: f64,
    /// Input values of bounds.
    pub inputs: Vec<Input>,
    /// Loop variables used by bounds.
    pub variables: Vec<VariableText>,
    /// Loops and blocks, in the forward order of control.
    pub body: Vec<Statement>,
}

/// An input value of a bound.
#[derive(Debug, Clone, PartialEq)]
pub struct Input {
    /// An atom.
    pub name: Form,
    /// Values with probabilities, of sum 1.
    pub values: Vec<(f64, f64)>,
    /// Source of the values.
    pub from: String,
}

impl Input {
    /// The mean.
    pub fn mean(&self) -> f64 {
        self.values.iter().map(|(value, share)| value * share).sum()
    }
}

/// A loop variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VariableText {
    /// Name.
    pub name: String,
    /// When the loop is entered.
    pub start: Form,
    /// Increment of an iteration.
    pub step: Form,
    /// Label of the loop.
    pub of_loop: u64,
}

/// A statement.
#[derive(Debug, Clone, PartialEq)]
pub enum Statement {
    /// A loop.
    Loop(LoopText),
    /// A block.
    Block(BlockText),
}

/// A loop.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LoopText {
    /// Address of the header.
    pub label: u64,
    /// Iterations, as an expression.
    pub bound: Option<Form>,
    /// Blocks of the bound's tests: each iteration comes to one test.
    pub tests: Vec<u64>,
    /// Iterations seen, and half the width of the interval.
    pub seen: Option<(f64, f64)>,
    /// Edges out of the loop.
    pub exits: u32,
    /// Changes of the loop.
    pub edits: Vec<Edit>,
    /// Statements, the header's first.
    pub body: Vec<Statement>,
}

/// A change of a loop, to estimate the effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Edit {
    /// Elements per iteration, by vector instructions.
    Vector(u32),
    /// Iterations merged into one: tests and branches become rarer.
    Unroll(u32),
    /// The loop's work is left out.
    Remove,
    /// Cores that share the iterations.
    Parallel(u32),
}

/// Kinds of computing instructions.
pub const CLASSES: [&str; 11] =
    ["int", "imul", "idiv", "fp32", "fp64", "fma", "fdiv", "vint", "move", "branch", "other"];

/// A block.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct BlockText {
    /// Address of the block.
    pub label: u64,
    /// Operations.
    pub parts: Vec<Part>,
    /// Successors with probabilities; empty at the end of the function.
    pub next: Vec<(u64, f64)>,
}

/// Part of a block.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    /// Computing instructions: kind (a place in [`CLASSES`]), lanes, count.
    Compute(usize, u32, f64),
    /// Loads: bytes, count.
    Load(u32, f64),
    /// Stores: bytes, count.
    Store(u32, f64),
    /// A call of a function of the text.
    Call {
        /// The callee.
        to: Location,
        /// How often in an execution of the block.
        times: f64,
        /// Arguments used by the callee's bounds, by number.
        arguments: Vec<(u8, Form)>,
    },
    /// A call of a function outside the text.
    Library(String, f64),
    /// A system call.
    System,
}

impl Skeleton {
    /// The skeleton's text.
    pub fn print(&self) -> String {
        let mut text = "skeleton 1\n".to_owned();
        for (name, build_id) in &self.files {
            let _ = writeln!(text, "file {} {}", quoted(name), quoted(build_id));
        }
        for function in &self.functions {
            function.print(&mut text);
        }
        text
    }

    /// Numbers of the functions by place.
    pub fn places(&self) -> BTreeMap<Location, usize> {
        self.functions.iter().zip(0..).map(|(function, number)| (function.at.clone(), number)).collect()
    }

    /// Number of the function at a place.
    pub fn find(&self, at: &Location) -> Option<usize> {
        self.functions.iter().position(|function| function.at == *at)
    }
}

/// In quotes; a backslash stands before quotes and backslashes, and `\n` for a line's end.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            '\n' => quoted.push_str("\\n"),
            _ => quoted.push(character),
        }
    }
    quoted.push('"');
    quoted
}

impl FunctionText {
    fn print(&self, text: &mut String) {
        let Location { file, address } = &self.at;
        let head = format!("fn {} @ {}:{address:x} calls {}", quoted(&self.name), quoted(file), self.calls);
        let _ = writeln!(text, "{head} {{");
        for Input { name, values, from } in &self.inputs {
            let value = match values.as_slice() {
                [(value, share)] if *share == 1.0 => format!("{value}"),
                values => {
                    let each: Vec<String> =
                        values.iter().map(|(value, share)| format!("{value}: {share}")).collect();
                    format!("{{ {} }}", each.join(", "))
                }
            };
            let _ = writeln!(text, "  input `{name}` = {value} {}", quoted(from));
        }
        for VariableText { name, start, step, of_loop } in &self.variables {
            let _ = writeln!(text, "  var {name} = `{start}` step `{step}` in L{of_loop:x}");
        }
        self.body.iter().for_each(|statement| statement.print(text, 1));
        text.push_str("}\n");
    }

    /// Atoms of bounds without an input or a variable:
    /// a word of memory as a whole, not the address.
    pub fn unknown(&self) -> Vec<Form> {
        let mut found = Vec::new();
        let is_known = |form: &Form| {
            let is_variable = |variable: &VariableText| *form == Form::name(variable.name.as_str());
            self.inputs.iter().any(|input| input.name == *form) || self.variables.iter().any(is_variable)
        };
        self.loops(&mut |text| {
            let mut forms: Vec<&Form> = text.bound.iter().collect();
            while let Some(form) = forms.pop() {
                for atom in form.terms.keys() {
                    let one = Form::atom(atom.clone());
                    match atom {
                        crate::form::Atom::Op(_, a, b) => forms.extend([&**a, &**b]),
                        _ if is_known(&one) || found.contains(&one) => {}
                        _ => found.push(one),
                    }
                }
            }
        });
        found
    }

    /// Calls `each` with every loop, outer loops first.
    pub fn loops<'a>(&'a self, each: &mut dyn FnMut(&'a LoopText)) {
        walk(&self.body, &mut |statement| {
            if let Statement::Loop(found) = statement {
                each(found);
            }
        });
    }

    /// Calls `each` with every block, in order.
    pub fn blocks<'a>(&'a self, each: &mut dyn FnMut(&'a BlockText)) {
        walk(&self.body, &mut |statement| {
            if let Statement::Block(block) = statement {
                each(block);
            }
        });
    }
}

/// Calls `each` with every statement, also inside loops.
pub fn walk<'a>(body: &'a [Statement], each: &mut dyn FnMut(&'a Statement)) {
    for statement in body {
        each(statement);
        if let Statement::Loop(found) = statement {
            walk(&found.body, each);
        }
    }
}

impl Statement {
    fn print(&self, text: &mut String, depth: usize) {
        let indent = "  ".repeat(depth.min(20));
        match self {
            Statement::Loop(found) => {
                let _ = write!(text, "{indent}loop L{:x}", found.label);
                if let Some(bound) = &found.bound {
                    let _ = write!(text, " bound `{bound}`");
                }
                if !found.tests.is_empty() {
                    text.push_str(" test");
                }
                for test in &found.tests {
                    let _ = write!(text, " b{test:x}");
                }
                match found.seen {
                    Some((seen, 0.0)) => {
                        let _ = write!(text, " seen {seen}");
                    }
                    Some((seen, width)) => {
                        let _ = write!(text, " seen {seen} +- {width}");
                    }
                    None => {}
                }
                let _ = write!(text, " exits {}", found.exits);
                for edit in &found.edits {
                    let _ = match edit {
                        Edit::Vector(lanes) => write!(text, " vector {lanes}"),
                        Edit::Unroll(times) => write!(text, " unroll {times}"),
                        Edit::Remove => write!(text, " remove"),
                        Edit::Parallel(cores) => write!(text, " parallel {cores}"),
                    };
                }
                text.push_str(" {\n");
                found.body.iter().for_each(|statement| statement.print(text, depth + 1));
                let _ = writeln!(text, "{indent}}}");
            }
            Statement::Block(block) => {
                let _ = write!(text, "{indent}b{:x}:", block.label);
                let mut computes = block.parts.iter().filter_map(|part| match part {
                    Part::Compute(class, lanes, count) => Some((class, lanes, count)),
                    _ => None,
                });
                let mut separator = " ";
                if let Some(first) = computes.next() {
                    text.push_str(" comp");
                    for (class, lanes, count) in std::iter::once(first).chain(computes) {
                        let _ = write!(text, " {}", CLASSES.get(*class).copied().unwrap_or("other"));
                        if *lanes != 1 {
                            let _ = write!(text, " x{lanes}");
                        }
                        let _ = write!(text, " {count}");
                    }
                    separator = "; ";
                }
                for part in &block.parts {
                    let words = match part {
                        Part::Compute(..) => continue,
                        Part::Load(bytes, count) => format!("ld {bytes} x {count}"),
                        Part::Store(bytes, count) => format!("st {bytes} x {count}"),
                        Part::Library(name, times) => format!("lib {} x {times}", quoted(name)),
                        Part::System => "sys".to_owned(),
                        Part::Call { to, times, arguments } => {
                            let mut words = format!("call {}:{:x} x {times}", quoted(&to.file), to.address);
                            for (number, form) in arguments {
                                let _ = write!(words, " arg{number} = `{form}`");
                            }
                            words
                        }
                    };
                    text.push_str(separator);
                    text.push_str(&words);
                    separator = "; ";
                }
                if !block.next.is_empty() {
                    text.push_str(" ->");
                    for (label, share) in &block.next {
                        let _ = write!(text, " b{label:x}:{share}");
                    }
                }
                text.push('\n');
            }
        }
    }
}
