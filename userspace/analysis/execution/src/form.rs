//! Values as linear forms: integer multiples of atoms and a constant. An atom is a name (an
//! argument, the result of a call, a loop variable), a word of memory, or a non-linear operation.
//!
//! Forms have one normal shape, so equal values compare equal, and a form's text
//! parses back to an equal form. Sources of error: arithmetic is of integers without
//! overflow; memory at equal forms of addresses is taken to have equal values.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::sync::Arc;

/// Limit of terms of a form, and deepest nesting of atoms; larger forms are not followed.
const MOST_TERMS: usize = 12;
const DEEPEST: usize = 6;

/// Unknowns of forms.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Atom {
    /// A named value of the function: `arg0`, `ret@1118`, `iv16e4_rax`.
    Name(Arc<str>),
    /// Memory at an address, with the size in bytes.
    Load(Box<Form>, u8),
    /// A non-linear operation.
    Op(Op, Box<Form>, Box<Form>),
}

/// Non-linear operations. Numbers are integers, divisions round as named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Op {
    /// Product.
    Times,
    /// Quotient, rounded up.
    Ceil,
    /// Quotient, rounded down, as of shifts to the right by a constant.
    Floor,
    /// The smaller.
    Min,
    /// The greater.
    Max,
    /// Common bits.
    And,
}

impl Op {
    /// Every operation, with the word of the language.
    pub const ALL: [(Op, &'static str); 6] = [
        (Op::Times, "times"),
        (Op::Ceil, "ceil"),
        (Op::Floor, "floor"),
        (Op::Min, "min"),
        (Op::Max, "max"),
        (Op::And, "and"),
    ];

    /// The word of the language.
    pub fn word(self) -> &'static str {
        Self::ALL.iter().find(|(op, _)| *op == self).map_or("", |(_, word)| word)
    }

    fn apply(self, a: f64, b: f64) -> Result<f64, NoValue> {
        let quotient = || if b == 0.0 { Err(NoValue::DividedByZero) } else { Ok(a / b) };
        Ok(match self {
            Op::Times => a * b,
            // A mean of loop variables lies between integers; the quotient is then not rounded.
            Op::Ceil if a.fract() == 0.0 => quotient()?.ceil(),
            Op::Floor if a.fract() == 0.0 => quotient()?.floor(),
            Op::Ceil => quotient()? + 0.5 * (1.0 - 1.0 / b.abs()),
            Op::Floor => quotient()? - 0.5 * (1.0 - 1.0 / b.abs()),
            Op::Min => a.min(b),
            Op::Max => a.max(b),
            Op::And if b < 0.0 => (a as i64 & b as i64) as f64,
            Op::And => (a as i64 & b as i64) as f64,
        })
    }
}

/// Why a form has no value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoValue {
    /// An atom is not known.
    Unknown(Atom),
    /// A division by zero.
    DividedByZero,
}

impl fmt::Display for NoValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoValue::Unknown(atom) => write!(f, "{atom} has no value"),
            NoValue::DividedByZero => f.write_str("a division by zero"),
        }
    }
}

/// A linear form.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Form {
    /// Factors of atoms, never 0.
    pub terms: BTreeMap<Atom, i64>,
    /// Constant term.
    pub constant: i64,
}

impl Form {
    /// A number.
    pub fn number(constant: i64) -> Self {
        Self { terms: BTreeMap::new(), constant }
    }

    /// A named value.
    pub fn name(name: impl Into<Arc<str>>) -> Self {
        Self::atom(Atom::Name(name.into()))
    }

    /// An atom as a form.
    pub fn atom(atom: Atom) -> Self {
        Self { terms: BTreeMap::from([(atom, 1)]), constant: 0 }
    }

    /// The number, in forms without atoms.
    pub fn as_number(&self) -> Option<i64> {
        self.terms.is_empty().then_some(self.constant)
    }

    /// Atom and factor of a form with a single term; the constant is ignored.
    pub fn single(&self) -> Option<(&Atom, i64)> {
        let (atom, factor) = self.terms.iter().next()?;
        (self.terms.len() == 1).then_some((atom, *factor))
    }

    /// `self + factor · other`; `None` beyond 64 bits or for a sum too large to follow.
    pub fn plus(&self, other: &Form, factor: i64) -> Option<Form> {
        let mut sum = self.clone();
        sum.constant = sum.constant.checked_add(other.constant.checked_mul(factor)?)?;
        for (atom, times) in &other.terms {
            let entry = sum.terms.entry(atom.clone()).or_insert(0);
            *entry = entry.checked_add(times.checked_mul(factor)?)?;
            if *entry == 0 {
                sum.terms.remove(atom);
            }
        }
        (sum.terms.len() <= MOST_TERMS).then_some(sum)
    }

    /// `self + constant`.
    pub fn add(&self, constant: i64) -> Option<Form> {
        self.plus(&Form::number(constant), 1)
    }

    /// `factor · self`.
    pub fn scaled(&self, factor: i64) -> Option<Form> {
        Form::default().plus(self, factor)
    }

    /// An operation in the simplest shape; `None` for a form too large to follow.
    pub fn op(op: Op, a: Form, b: Form) -> Option<Form> {
        match (op, a.as_number(), b.as_number()) {
            (Op::Times, Some(factor), _) => return b.scaled(factor),
            (Op::Times, _, Some(factor)) => return a.scaled(factor),
            (Op::Ceil | Op::Floor, _, Some(1)) => return Some(a),
            (Op::Ceil | Op::Floor, _, Some(-1)) => return a.scaled(-1),
            (Op::Min | Op::Max, ..) if a == b => return Some(a),
            (_, Some(x), Some(y)) => {
                if let Ok(value) = op.apply(x as f64, y as f64)
                    && value.abs() < 9e15
                    && value.fract() == 0.0
                {
                    return Some(Form::number(value as i64));
                }
            }
            (Op::Ceil | Op::Floor, _, Some(by)) if by > 0 => {
                let divides = |n: &i64| n % by == 0;
                if divides(&a.constant) && a.terms.values().all(divides) {
                    let terms = a.terms.into_iter().map(|(atom, factor)| (atom, factor / by)).collect();
                    return Some(Form { terms, constant: a.constant / by });
                }
            }
            _ => {}
        }
        let is_simple =
            |form: &Form| form.single().is_some_and(|(_, factor)| factor == 1) && form.constant == 0;
        if op == Op::Times && !(is_simple(&a) && is_simple(&b)) {
            return Form::product(&a, &b);
        }
        let (a, b) = if matches!(op, Op::Times | Op::Min | Op::Max) && b < a { (b, a) } else { (a, b) };
        let form = Form::atom(Atom::Op(op, Box::new(a), Box::new(b)));
        (form.depth() <= DEEPEST).then_some(form)
    }

    /// A product of sums as a sum of products, so that equal products cancel.
    fn product(a: &Form, b: &Form) -> Option<Form> {
        let mut sum = a.scaled(b.constant)?.plus(&b.scaled(a.constant)?, 1)?;
        sum.constant = a.constant.checked_mul(b.constant)?;
        for (first, times) in &a.terms {
            for (second, by) in &b.terms {
                let one = Form::op(Op::Times, Form::atom(first.clone()), Form::atom(second.clone()))?;
                sum = sum.plus(&one, times.checked_mul(*by)?)?;
            }
        }
        Some(sum)
    }

    /// Memory at the address `self`; `None` for a form too large to follow.
    pub fn load(self, bytes: u8) -> Option<Form> {
        let form = Form::atom(Atom::Load(Box::new(self), bytes));
        (form.depth() <= DEEPEST).then_some(form)
    }

    /// Depth of nested atoms.
    pub fn depth(&self) -> usize {
        let of = |atom: &Atom| match atom {
            Atom::Name(_) => 1,
            Atom::Load(at, _) => 1 + at.depth(),
            Atom::Op(_, a, b) => 1 + a.depth().max(b.depth()),
        };
        self.terms.keys().map(of).max().unwrap_or(0)
    }

    /// Calls `each` with every atom, nested atoms included.
    pub fn visit(&self, each: &mut dyn FnMut(&Atom)) {
        for atom in self.terms.keys() {
            each(atom);
            match atom {
                Atom::Name(_) => {}
                Atom::Load(at, _) => at.visit(each),
                Atom::Op(_, a, b) => {
                    a.visit(each);
                    b.visit(each);
                }
            }
        }
    }

    /// Whether `is` is true of an atom, nested atoms included.
    pub fn any(&self, mut is: impl FnMut(&Atom) -> bool) -> bool {
        let mut found = false;
        self.visit(&mut |atom| found |= is(atom));
        found
    }

    /// Atoms replaced by the forms of `with`, nested atoms first.
    pub fn replaced(&self, with: &dyn Fn(&Atom) -> Option<Form>) -> Option<Form> {
        let mut sum = Form::number(self.constant);
        for (atom, factor) in &self.terms {
            let new = match atom {
                Atom::Name(_) => atom.clone(),
                Atom::Load(at, bytes) => Atom::Load(Box::new(at.replaced(with)?), *bytes),
                Atom::Op(op, a, b) => {
                    let form = Form::op(*op, a.replaced(with)?, b.replaced(with)?)?;
                    match form.single() {
                        Some((atom, 1)) if form.constant == 0 => atom.clone(),
                        _ => {
                            sum = sum.plus(&form, *factor)?;
                            continue;
                        }
                    }
                }
            };
            sum = sum.plus(&with(&new).unwrap_or_else(|| Form::atom(new)), *factor)?;
        }
        Some(sum)
    }

    /// Value by the values of the atoms. An operation without a value in `of` is computed.
    ///
    /// # Errors
    /// The first atom without a value, or a division by zero.
    pub fn value(&self, of: &dyn Fn(&Atom) -> Option<f64>) -> Result<f64, NoValue> {
        let mut sum = self.constant as f64;
        for (atom, factor) in &self.terms {
            let value = match (of(atom), atom) {
                (Some(value), _) => value,
                (None, Atom::Op(op, a, b)) => op.apply(a.value(of)?, b.value(of)?)?,
                (None, _) => return Err(NoValue::Unknown(atom.clone())),
            };
            sum += value * *factor as f64;
        }
        Ok(sum)
    }
}

impl fmt::Display for Atom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Atom::Name(name) => f.write_str(name),
            Atom::Load(at, 8) => write!(f, "[{at}]"),
            Atom::Load(at, bytes) => write!(f, "[{at}]:{bytes}"),
            Atom::Op(op, a, b) => write!(f, "{}({a}, {b})", op.word()),
        }
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        for (atom, factor) in &self.terms {
            let sign = match (text.is_empty(), *factor < 0) {
                (true, false) => "",
                (true, true) => "-",
                (false, false) => " + ",
                (false, true) => " - ",
            };
            text.push_str(sign);
            match factor.unsigned_abs() {
                1 => write!(text, "{atom}")?,
                by => write!(text, "{by}*{atom}")?,
            }
        }
        match (text.is_empty(), self.constant) {
            (true, constant) => write!(text, "{constant}")?,
            (false, 0) => {}
            (false, constant) if constant < 0 => write!(text, " - {}", constant.unsigned_abs())?,
            (false, constant) => write!(text, " + {constant}")?,
        }
        f.write_str(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_have_one_shape() {
        let (n, m) = (Form::name("arg0"), Form::name("arg1"));
        let sum = n.plus(&m, 2).unwrap().add(-3).unwrap();
        assert_eq!(sum.to_string(), "arg0 + 2*arg1 - 3");
        assert_eq!(sum.plus(&n, -1).unwrap().plus(&m, -2).unwrap(), Form::number(-3));
        assert_eq!(Form::op(Op::Times, n.clone(), Form::number(8)), n.scaled(8));
        assert_eq!(Form::op(Op::Ceil, n.scaled(8).unwrap(), Form::number(8)), Some(n.clone()));
        let product = |a: &Form, b: &Form| Form::op(Op::Times, a.clone(), b.clone()).unwrap();
        assert_eq!(product(&n, &m), product(&m, &n));
        let sum = n.plus(&m, 2).unwrap().add(3).unwrap();
        assert_eq!(product(&sum, &m).to_string(), "3*arg1 + times(arg0, arg1) + 2*times(arg1, arg1)");
        assert_eq!(n.scaled(i64::MAX).unwrap().scaled(2), None);
    }

    #[test]
    fn values_are_computed_or_refused_in_words() {
        let form = Form::op(Op::Ceil, Form::name("n").add(3).unwrap(), Form::number(4)).unwrap();
        let of = |value: f64| move |atom: &Atom| matches!(atom, Atom::Name(_)).then_some(value);
        assert_eq!(form.value(&of(5.0)), Ok(2.0));
        assert_eq!(form.value(&of(6.0)), Ok(3.0));
        assert_eq!(form.value(&|_| None).unwrap_err().to_string(), "n has no value");
        let by = Form::op(Op::Floor, Form::number(4), Form::name("n")).unwrap();
        assert_eq!(by.value(&of(0.0)), Err(NoValue::DividedByZero));
        let load = Form::name("arg0").add(32).unwrap().load(8).unwrap();
        assert_eq!(load.value(&|atom| (atom.to_string() == "[arg0 + 32]").then_some(7.0)), Ok(7.0));
    }

    #[test]
    fn atoms_are_replaced_inside_others() {
        let form = Form::name("i").scaled(4).unwrap().load(4).unwrap();
        let put = |atom: &Atom| (atom.to_string() == "i").then(|| Form::name("n").add(1).unwrap());
        assert_eq!(form.replaced(&put).unwrap().to_string(), "[4*n + 4]:4");
    }
}
