//! Reads the text of a skeleton. Whatever the text, the answer is a skeleton that can be evaluated or one
//! sentence with the line and the column of what is wrong.

use std::collections::BTreeSet;
use std::fmt;

use crate::form::{Atom, Form, Op};
use crate::language::{
    BlockText, CLASSES, Edit, FunctionText, Input, Location, LoopText, Part, Skeleton, Statement,
    VariableText,
};

/// Bytes of a text that are read.
pub const LARGEST: usize = 64 << 20;
/// Loops inside each other.
const DEEPEST: usize = 200;
/// Brackets inside each other in an expression.
const DEEPEST_EXPRESSION: usize = 30;
/// Greatest number of iterations, calls or instructions.
const GREATEST: f64 = 1e18;
/// How far probabilities may be from summing to 1.
const TOLERANCE: f64 = 1e-3;

/// What is wrong, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyntaxError {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What is wrong.
    pub message: String,
}

impl fmt::Display for SyntaxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}: {}", self.line, self.column, self.message)
    }
}

impl std::error::Error for SyntaxError {}

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Word(String),
    Text(String),
    Expression(Form),
    Sign(&'static str),
    End,
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Token::Word(word) => write!(f, "`{}`", word.chars().take(40).collect::<String>()),
            Token::Text(_) => f.write_str("a text in quotes"),
            Token::Expression(_) => f.write_str("an expression"),
            Token::Sign(sign) => write!(f, "`{sign}`"),
            Token::End => f.write_str("the end of the text"),
        }
    }
}

/// Reads a text.
///
/// # Errors
/// The first thing that is wrong.
pub fn parse(text: &str) -> Result<Skeleton, SyntaxError> {
    let error = |message: String| SyntaxError { line: 1, column: 1, message };
    if text.len() > LARGEST {
        return Err(error(format!("the text is larger than {} MiB", LARGEST >> 20)));
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut parser = Parser { reader: Reader { rest: text, line: 1, column: 1 }, next: None };
    parser.word("skeleton")?;
    let at = parser.place()?;
    if parser.number("the version")? != 1.0 {
        return Err(at.error("only version 1 of the language is known".to_owned()));
    }
    let mut skeleton = Skeleton::default();
    loop {
        let at = parser.place()?;
        match parser.take()? {
            Token::End => break,
            Token::Word(word) if word == "file" => {
                skeleton.files.push((parser.text("a file's name")?, parser.text("a build id")?));
            }
            Token::Word(word) if word == "fn" => {
                let function = parser.function()?;
                if skeleton.find(&function.at).is_some() {
                    return Err(at.error(format!("the function {} is there twice", function.name)));
                }
                skeleton.functions.push(function);
            }
            other => return Err(at.error(format!("`file` or `fn` was expected, not {other}"))),
        }
    }
    Ok(skeleton)
}

/// Reads one expression, as `--set` has names.
///
/// # Errors
/// What is wrong with it.
pub fn expression(text: &str) -> Result<Form, SyntaxError> {
    let mut reader = Reader { rest: text, line: 1, column: 1 };
    let form = reader.sum(0)?;
    reader.space();
    match reader.rest.is_empty() {
        true => Ok(form),
        false => Err(reader.error("the expression should end here".to_owned())),
    }
}

/// A place in the text.
#[derive(Debug, Clone, Copy)]
struct Place {
    line: usize,
    column: usize,
}

impl Place {
    fn error(self, message: String) -> SyntaxError {
        SyntaxError { line: self.line, column: self.column, message }
    }
}

struct Reader<'a> {
    rest: &'a str,
    line: usize,
    column: usize,
}

impl Reader<'_> {
    fn error(&self, message: String) -> SyntaxError {
        SyntaxError { line: self.line, column: self.column, message }
    }

    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn advance(&mut self) -> Option<char> {
        let mut characters = self.rest.chars();
        let character = characters.next()?;
        self.rest = characters.as_str();
        if character == '\n' {
            (self.line, self.column) = (self.line + 1, 1);
        } else {
            self.column += 1;
        }
        Some(character)
    }

    /// Skips blanks and comments.
    fn space(&mut self) {
        while let Some(character) = self.peek() {
            match character {
                '#' => {
                    while self.peek().is_some_and(|next| next != '\n') {
                        self.advance();
                    }
                }
                _ if character.is_whitespace() => {
                    self.advance();
                }
                _ => return,
            }
        }
    }

    fn word(&mut self) -> String {
        let mut word = String::new();
        while let Some(character) = self.peek() {
            let in_exponent = character == '-'
                && word.ends_with('e')
                && word.starts_with(|first: char| first.is_ascii_digit())
                && !word.contains('-');
            if !(character.is_ascii_alphanumeric() || matches!(character, '_' | '@' | '.') || in_exponent) {
                break;
            }
            word.push(character);
            self.advance();
        }
        word
    }

    fn token(&mut self) -> Result<Token, SyntaxError> {
        self.space();
        let Some(first) = self.peek() else { return Ok(Token::End) };
        if first.is_ascii_alphanumeric() || matches!(first, '_' | '.') {
            return Ok(Token::Word(self.word()));
        }
        let at = Place { line: self.line, column: self.column };
        self.advance();
        let sign = match first {
            '"' => return self.quoted(at).map(Token::Text),
            '`' => {
                let form = self.sum(0)?;
                self.space();
                if self.peek() != Some('`') {
                    return Err(self.error("the expression should end here, with a backquote".to_owned()));
                }
                self.advance();
                return Ok(Token::Expression(form));
            }
            '{' => "{",
            '}' => "}",
            ':' => ":",
            ';' => ";",
            ',' => ",",
            '=' => "=",
            '@' => "@",
            '-' if self.peek() == Some('>') => "->",
            '+' if self.peek() == Some('-') => "+-",
            '-' => "-",
            other => return Err(at.error(format!("`{}` means nothing here", other.escape_default()))),
        };
        if sign.len() == 2 {
            self.advance();
        }
        Ok(Token::Sign(sign))
    }

    fn quoted(&mut self, at: Place) -> Result<String, SyntaxError> {
        let mut text = String::new();
        loop {
            match self.advance() {
                Some('"') => return Ok(text),
                Some('\\') => match self.advance() {
                    Some('n') => text.push('\n'),
                    Some(other) => text.push(other),
                    None => return Err(at.error("the text in quotes does not end".to_owned())),
                },
                Some('\n') | None => return Err(at.error("the text in quotes does not end".to_owned())),
                Some(other) => text.push(other),
            }
        }
    }

    fn sum(&mut self, depth: usize) -> Result<Form, SyntaxError> {
        if depth > DEEPEST_EXPRESSION {
            return Err(self.error("the expression is nested too deeply".to_owned()));
        }
        let mut sum = Form::default();
        let mut sign = 1;
        self.space();
        if self.peek() == Some('-') {
            self.advance();
            sign = -1;
        }
        loop {
            let term = self.term(depth)?;
            let too_large = || self.error("the expression is too large".to_owned());
            sum = sum.plus(&term, sign).ok_or_else(too_large)?;
            self.space();
            sign = match self.peek() {
                Some('+') => 1,
                Some('-') => -1,
                _ => return Ok(sum),
            };
            self.advance();
        }
    }

    fn term(&mut self, depth: usize) -> Result<Form, SyntaxError> {
        self.space();
        let at = Place { line: self.line, column: self.column };
        if self.peek().is_some_and(|first| first.is_ascii_digit()) {
            let word = self.word();
            let number = word.parse::<i64>();
            let number = number.map_err(|_| at.error(format!("`{word}` is no whole number")))?;
            self.space();
            if self.peek() != Some('*') {
                return Ok(Form::number(number));
            }
            self.advance();
            let atom = self.atom(depth)?;
            return atom.scaled(number).ok_or_else(|| at.error("the expression is too large".to_owned()));
        }
        self.atom(depth)
    }

    fn atom(&mut self, depth: usize) -> Result<Form, SyntaxError> {
        self.space();
        let at = Place { line: self.line, column: self.column };
        let too_large = || at.error("the expression is too large".to_owned());
        if self.peek() == Some('[') {
            self.advance();
            let address = self.sum(depth + 1)?;
            self.expect(']')?;
            let mut bytes = 8;
            if self.peek() == Some(':') {
                self.advance();
                let word = self.word();
                let known = word.parse::<u8>().ok().filter(|bytes| [1, 2, 4, 8].contains(bytes));
                bytes = known.ok_or_else(|| at.error("memory has 1, 2, 4 or 8 bytes".to_owned()))?;
            }
            return address.load(bytes).ok_or_else(too_large);
        }
        let word = self.word();
        if word.is_empty() || word.starts_with(|first: char| first.is_ascii_digit()) {
            return Err(at.error("a number, a name, `[` or an operation was expected".to_owned()));
        }
        self.space();
        if self.peek() != Some('(') {
            return Ok(Form::name(word));
        }
        let op = Op::ALL.iter().find(|(_, known)| *known == word).map(|(op, _)| *op);
        let op = op.ok_or_else(|| at.error(format!("there is no operation `{word}`")))?;
        self.advance();
        let first = self.sum(depth + 1)?;
        self.expect(',')?;
        let second = self.sum(depth + 1)?;
        self.expect(')')?;
        if matches!(op, Op::Ceil | Op::Floor) && second.as_number() == Some(0) {
            return Err(at.error("a division by zero".to_owned()));
        }
        Form::op(op, first, second).ok_or_else(too_large)
    }

    fn expect(&mut self, character: char) -> Result<(), SyntaxError> {
        self.space();
        match self.peek() == Some(character) {
            true => {
                self.advance();
                Ok(())
            }
            false => Err(self.error(format!("`{character}` was expected"))),
        }
    }
}

struct Parser<'a> {
    reader: Reader<'a>,
    next: Option<(Place, Token)>,
}

/// Labels of a function, to be checked at its end.
#[derive(Default)]
struct Labels {
    blocks: BTreeSet<u64>,
    loops: BTreeSet<u64>,
    /// Blocks that are named, with the places where.
    named: Vec<(u64, Place)>,
}

impl Parser<'_> {
    fn fill(&mut self) -> Result<&(Place, Token), SyntaxError> {
        if self.next.is_none() {
            self.reader.space();
            let at = Place { line: self.reader.line, column: self.reader.column };
            let token = self.reader.token()?;
            self.next = Some((at, token));
        }
        match &self.next {
            Some(next) => Ok(next),
            None => Err(self.reader.error("nothing is left".to_owned())),
        }
    }

    fn place(&mut self) -> Result<Place, SyntaxError> {
        self.fill().map(|(at, _)| *at)
    }

    fn peek(&mut self) -> Result<&Token, SyntaxError> {
        self.fill().map(|(_, token)| token)
    }

    fn take(&mut self) -> Result<Token, SyntaxError> {
        self.fill()?;
        Ok(self.next.take().map_or(Token::End, |(_, token)| token))
    }

    fn is_word(&mut self, word: &str) -> Result<bool, SyntaxError> {
        let is = matches!(self.peek()?, Token::Word(found) if found == word);
        if is {
            self.next = None;
        }
        Ok(is)
    }

    fn is_sign(&mut self, sign: &str) -> Result<bool, SyntaxError> {
        let is = matches!(self.peek()?, Token::Sign(found) if *found == sign);
        if is {
            self.next = None;
        }
        Ok(is)
    }

    fn word(&mut self, word: &str) -> Result<(), SyntaxError> {
        let at = self.place()?;
        match self.is_word(word)? {
            true => Ok(()),
            false => Err(at.error(format!("`{word}` was expected, not {}", self.peek()?))),
        }
    }

    fn sign(&mut self, sign: &str) -> Result<(), SyntaxError> {
        let at = self.place()?;
        match self.is_sign(sign)? {
            true => Ok(()),
            false => Err(at.error(format!("`{sign}` was expected, not {}", self.peek()?))),
        }
    }

    fn text(&mut self, what: &str) -> Result<String, SyntaxError> {
        let at = self.place()?;
        match self.take()? {
            Token::Text(text) => Ok(text),
            other => Err(at.error(format!("{what} in quotes was expected, not {other}"))),
        }
    }

    fn form(&mut self) -> Result<Form, SyntaxError> {
        let at = self.place()?;
        match self.take()? {
            Token::Expression(form) => Ok(form),
            other => Err(at.error(format!("an expression in backquotes was expected, not {other}"))),
        }
    }

    /// A number that is not negative.
    fn number(&mut self, what: &str) -> Result<f64, SyntaxError> {
        let at = self.place()?;
        let token = self.take()?;
        if token == Token::Sign("-") {
            return Err(at.error(format!("{what} must not be negative")));
        }
        let Token::Word(word) = &token else {
            return Err(at.error(format!("{what} was expected, not {token}")));
        };
        match word.parse::<f64>() {
            Ok(number) if (0.0..=GREATEST).contains(&number) => Ok(number),
            Ok(_) => Err(at.error(format!("{what} must be a number from 0 to {GREATEST:e}"))),
            Err(_) => Err(at.error(format!("{what} was expected, not {token}"))),
        }
    }

    fn whole(&mut self, what: &str, least: u32) -> Result<u32, SyntaxError> {
        let at = self.place()?;
        let number = self.number(what)?;
        if number.fract() != 0.0 || number < f64::from(least) || number > f64::from(u32::MAX) {
            return Err(at.error(format!("{what} must be a whole number of at least {least}")));
        }
        Ok(number as u32)
    }

    fn hexadecimal(&mut self) -> Result<u64, SyntaxError> {
        let at = self.place()?;
        let token = self.take()?;
        let number = match &token {
            Token::Word(word) => u64::from_str_radix(word, 16).ok(),
            _ => None,
        };
        number.ok_or_else(|| at.error(format!("a hexadecimal address was expected, not {token}")))
    }

    fn label(&mut self, letter: char) -> Result<u64, SyntaxError> {
        let at = self.place()?;
        let token = self.take()?;
        let number = match &token {
            Token::Word(word) => {
                word.strip_prefix(letter).and_then(|rest| u64::from_str_radix(rest, 16).ok())
            }
            _ => None,
        };
        let wanted = || format!("a label, `{letter}` and a hexadecimal address, was expected, not {token}");
        number.ok_or_else(|| at.error(wanted()))
    }

    fn location(&mut self) -> Result<Location, SyntaxError> {
        let file = self.text("a file's name")?;
        self.sign(":")?;
        Ok(Location { file, address: self.hexadecimal()? })
    }

    fn function(&mut self) -> Result<FunctionText, SyntaxError> {
        let name = self.text("a function's name")?;
        self.sign("@")?;
        let at = self.location()?;
        self.word("calls")?;
        let calls = self.number("the number of calls")?;
        let mut function = FunctionText { name, at, calls, ..FunctionText::default() };
        self.sign("{")?;
        loop {
            if self.is_word("input")? {
                let input = self.input()?;
                function.inputs.push(input);
            } else if self.is_word("var")? {
                function.variables.push(self.variable()?);
            } else {
                break;
            }
        }
        let mut labels = Labels::default();
        let end = self.place()?;
        function.body = self.statements(&mut labels, 0)?;
        for (label, at) in &labels.named {
            if !labels.blocks.contains(label) {
                return Err(at.error(format!("there is no block b{label:x}")));
            }
        }
        for variable in &function.variables {
            if !labels.loops.contains(&variable.of_loop) {
                let message =
                    format!("{} is a variable of L{:x}, which is not there", variable.name, variable.of_loop);
                return Err(end.error(message));
            }
        }
        let names: BTreeSet<&str> = function.variables.iter().map(|variable| &*variable.name).collect();
        if names.len() < function.variables.len() {
            return Err(end.error("a variable is there twice".to_owned()));
        }
        if let Some(name) = cyclic(&function.variables) {
            return Err(end.error(format!("the variable {name} depends on itself")));
        }
        Ok(function)
    }

    fn input(&mut self) -> Result<Input, SyntaxError> {
        let at = self.place()?;
        let name = self.form()?;
        if name.single().is_none_or(|(_, factor)| factor != 1) || name.constant != 0 {
            return Err(at.error(format!("an input is one name or one word of memory, not {name}")));
        }
        self.sign("=")?;
        let at = self.place()?;
        let mut values = Vec::new();
        if self.is_sign("{")? {
            loop {
                let value = self.signed("a value")?;
                self.sign(":")?;
                values.push((value, self.number("a probability")?));
                if !self.is_sign(",")? {
                    break;
                }
            }
            self.sign("}")?;
            let sum: f64 = values.iter().map(|(_, share)| share).sum();
            if (sum - 1.0).abs() > TOLERANCE {
                return Err(at.error(format!("the probabilities of {name} sum to {sum}, not to 1")));
            }
        } else {
            values.push((self.signed("a value")?, 1.0));
        }
        Ok(Input { name, values, from: self.text("where the value comes from")? })
    }

    fn signed(&mut self, what: &str) -> Result<f64, SyntaxError> {
        let negative = self.is_sign("-")?;
        let number = self.number(what)?;
        Ok(if negative { -number } else { number })
    }

    fn variable(&mut self) -> Result<VariableText, SyntaxError> {
        let at = self.place()?;
        let name = match self.take()? {
            Token::Word(word) => word,
            other => return Err(at.error(format!("a variable's name was expected, not {other}"))),
        };
        self.sign("=")?;
        let start = self.form()?;
        self.word("step")?;
        let step = self.form()?;
        self.word("in")?;
        Ok(VariableText { name, start, step, of_loop: self.label('L')? })
    }

    /// Statements up to the brace that closes them.
    fn statements(&mut self, labels: &mut Labels, depth: usize) -> Result<Vec<Statement>, SyntaxError> {
        let mut statements = Vec::new();
        loop {
            let at = self.place()?;
            if self.is_sign("}")? {
                return Ok(statements);
            }
            if *self.peek()? == Token::End {
                return Err(at.error("a `}` is missing".to_owned()));
            }
            if self.is_word("loop")? {
                if depth >= DEEPEST {
                    return Err(at.error(format!("more than {DEEPEST} loops are inside each other")));
                }
                statements.push(Statement::Loop(self.one_loop(labels, depth)?));
                continue;
            }
            let is_block =
                matches!(self.peek()?, Token::Word(word) if word.starts_with('b') && word.len() > 1);
            if !is_block {
                return Err(at.error(format!("a loop, a block or `}}` was expected, not {}", self.peek()?)));
            }
            let block = self.block(labels)?;
            if !labels.blocks.insert(block.label) {
                return Err(at.error(format!("the block b{:x} is there twice", block.label)));
            }
            statements.push(Statement::Block(block));
        }
    }

    fn one_loop(&mut self, labels: &mut Labels, depth: usize) -> Result<LoopText, SyntaxError> {
        let at = self.place()?;
        let mut found = LoopText { label: self.label('L')?, ..LoopText::default() };
        if !labels.loops.insert(found.label) {
            return Err(at.error(format!("the loop L{:x} is there twice", found.label)));
        }
        if self.is_word("bound")? {
            found.bound = Some(self.form()?);
        }
        if self.is_word("test")? {
            loop {
                let at = self.place()?;
                let test = self.label('b')?;
                labels.named.push((test, at));
                found.tests.push(test);
                if !matches!(self.peek()?, Token::Word(word) if word.starts_with('b')) {
                    break;
                }
            }
        }
        if self.is_word("seen")? {
            let seen = self.number("the iterations seen")?;
            let width = if self.is_sign("+-")? { self.number("half the interval")? } else { 0.0 };
            found.seen = Some((seen, width));
        }
        self.word("exits")?;
        found.exits = self.whole("the number of exits", 0)?;
        loop {
            let edit = if self.is_word("vector")? {
                Edit::Vector(self.whole("the number of lanes", 1)?)
            } else if self.is_word("unroll")? {
                Edit::Unroll(self.whole("the number of iterations", 1)?)
            } else if self.is_word("parallel")? {
                Edit::Parallel(self.whole("the number of cores", 1)?)
            } else if self.is_word("remove")? {
                Edit::Remove
            } else {
                break;
            };
            found.edits.push(edit);
        }
        self.sign("{")?;
        found.body = self.statements(labels, depth + 1)?;
        let begins = match found.body.first() {
            Some(Statement::Block(block)) => block.label == found.label,
            Some(Statement::Loop(_)) | None => false,
        };
        if !begins {
            return Err(at.error(format!("the loop L{0:x} must begin with the block b{0:x}", found.label)));
        }
        Ok(found)
    }

    fn block(&mut self, labels: &mut Labels) -> Result<BlockText, SyntaxError> {
        let mut block = BlockText { label: self.label('b')?, ..BlockText::default() };
        self.sign(":")?;
        loop {
            if self.is_word("comp")? {
                while let Token::Word(word) = self.peek()?.clone() {
                    let Some(class) = CLASSES.iter().position(|known| *known == word) else { break };
                    self.take()?;
                    let mut lanes = 1;
                    if let Token::Word(word) = self.peek()?.clone()
                        && let Some(digits) = word.strip_prefix('x')
                        && let Ok(number) = digits.parse()
                    {
                        self.take()?;
                        lanes = number;
                    }
                    block.parts.push(Part::Compute(class, lanes, self.number("a count")?));
                }
            } else if self.is_word("ld")? {
                let bytes = self.whole("the bytes of a load", 1)?;
                self.word("x")?;
                block.parts.push(Part::Load(bytes, self.number("a count")?));
            } else if self.is_word("st")? {
                let bytes = self.whole("the bytes of a store", 1)?;
                self.word("x")?;
                block.parts.push(Part::Store(bytes, self.number("a count")?));
            } else if self.is_word("lib")? {
                let name = self.text("a function's name")?;
                self.word("x")?;
                block.parts.push(Part::Library(name, self.number("a count")?));
            } else if self.is_word("sys")? {
                block.parts.push(Part::System);
            } else if self.is_word("call")? {
                let call = self.call()?;
                block.parts.push(call);
            } else {
                break;
            }
            if !self.is_sign(";")? {
                break;
            }
        }
        if self.is_sign("->")? {
            let at = self.place()?;
            while matches!(self.peek()?, Token::Word(word) if word.starts_with('b')) {
                let at = self.place()?;
                // What follows may be the next block, which has a colon and no number after it.
                let label = self.label('b')?;
                self.sign(":")?;
                block.next.push((label, self.number("a probability")?));
                labels.named.push((label, at));
                if self.place()?.line != at.line {
                    break;
                }
            }
            let sum: f64 = block.next.iter().map(|(_, share)| share).sum();
            if (sum - 1.0).abs() > TOLERANCE {
                let message = format!("the probabilities after b{:x} sum to {sum}, not to 1", block.label);
                return Err(at.error(message));
            }
        }
        Ok(block)
    }

    fn call(&mut self) -> Result<Part, SyntaxError> {
        let to = self.location()?;
        self.word("x")?;
        let times = self.number("a count")?;
        let mut arguments = Vec::new();
        while let Token::Word(word) = self.peek()?.clone() {
            let Some(number) = word.strip_prefix("arg").and_then(|digits| digits.parse::<u8>().ok()) else {
                break;
            };
            self.take()?;
            self.sign("=")?;
            arguments.push((number, self.form()?));
        }
        Ok(Part::Call { to, times, arguments })
    }
}

/// A variable whose start or step depends on itself, through others or at once.
fn cyclic(variables: &[VariableText]) -> Option<&str> {
    let uses = |variable: &VariableText| {
        let names = |atom: &Atom| match atom {
            Atom::Name(name) => variables.iter().position(|other| *other.name == **name),
            _ => None,
        };
        let mut found = Vec::new();
        for form in [&variable.start, &variable.step] {
            form.visit(&mut |atom| found.extend(names(atom)));
        }
        found
    };
    let all: Vec<Vec<usize>> = variables.iter().map(uses).collect();
    (0..variables.len()).find_map(|from| {
        let mut seen = vec![false; variables.len()];
        let mut work = all.get(from)?.clone();
        while let Some(at) = work.pop() {
            if at == from {
                return variables.get(from).map(|variable| &*variable.name);
            }
            if !std::mem::replace(seen.get_mut(at)?, true) {
                work.extend(all.get(at)?);
            }
        }
        None
    })
}
