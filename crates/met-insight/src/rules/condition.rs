//! The language of conditions: comparisons of fields and metrics, typed and total.
//!
//! ```text
//! cpus >= 2 and cores < 50% * cpus and not gpu_ratio > 10%
//! ```
//!
//! What is not known makes a comparison unknown, and an unknown condition never holds.

use std::fmt;

use met_core::{Column, JOB, Unit};

use super::fields::{self, Field};

/// Expressions nest no deeper, and are no longer.
const DEPTH_MAX: usize = 32;
const LENGTH_MAX: usize = 2000;
/// In base units: 870 PiB, or the age of the universe in seconds.
const NUMBER_MAX: f64 = 1e18;

/// The dimension of a number: exponents of its base units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dim {
    pub bytes: i8,
    pub seconds: i8,
    pub joules: i8,
}

impl Dim {
    pub const ONE: Dim = Dim { bytes: 0, seconds: 0, joules: 0 };
    pub const BYTES: Dim = Dim { bytes: 1, ..Dim::ONE };
    pub const SECONDS: Dim = Dim { seconds: 1, ..Dim::ONE };
    pub const JOULES: Dim = Dim { joules: 1, ..Dim::ONE };

    pub const fn per_second(self) -> Dim {
        Dim { seconds: self.seconds - 1, ..self }
    }

    fn times(self, other: Dim, sign: i8) -> Option<Dim> {
        let add = |one: i8, other: i8| one.checked_add(other.checked_mul(sign)?);
        Some(Dim {
            bytes: add(self.bytes, other.bytes)?,
            seconds: add(self.seconds, other.seconds)?,
            joules: add(self.joules, other.joules)?,
        })
    }

    fn of(column: &Column) -> Dim {
        match column.unit {
            Unit::Bytes => Dim::BYTES,
            Unit::Seconds => Dim::SECONDS,
            Unit::Joules => Dim::JOULES,
            Unit::Watts => Dim::JOULES.per_second(),
            Unit::Hertz => Dim::ONE.per_second(),
            _ => Dim::ONE,
        }
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, to: &mut fmt::Formatter) -> fmt::Result {
        let units = [("bytes", self.bytes), ("seconds", self.seconds), ("joules", self.joules)];
        let mut words: Vec<String> = Vec::new();
        for (name, power) in units {
            match power {
                0 => {}
                1 => words.push(name.to_owned()),
                power => words.push(format!("{name}^{power}")),
            }
        }
        to.write_str(if words.is_empty() { "a plain number" } else { "" })?;
        to.write_str(&words.join(" "))
    }
}

/// What of a metric over the job's time is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stat {
    Total,
    Mean,
    P95,
    Max,
    /// The growth of a counter per second.
    Rate,
}

impl Stat {
    /// In the order of the variants.
    pub(super) const NAMES: [(&'static str, Stat); 5] = [
        ("total", Stat::Total),
        ("mean", Stat::Mean),
        ("p95", Stat::P95),
        ("max", Stat::Max),
        ("rate", Stat::Rate),
    ];

    pub fn name(self) -> &'static str {
        Stat::NAMES.iter().find(|(_, stat)| *stat == self).map_or("", |(name, _)| name)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Equal,
    NotEqual,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Math {
    Add,
    Subtract,
    Multiply,
    Divide,
    Min,
    Max,
}

impl Math {
    pub fn of(self, left: f64, right: f64) -> f64 {
        match self {
            Math::Add => left + right,
            Math::Subtract => left - right,
            Math::Multiply => left * right,
            Math::Divide => left / right,
            Math::Min => left.min(right),
            Math::Max => left.max(right),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Expr {
    Number(f64),
    Field(&'static Field),
    /// A column of the job table.
    Metric(Stat, usize),
    /// Whether a number is known.
    Known(Box<Expr>),
    Not(Box<Expr>),
    And(Box<Expr>, Box<Expr>),
    Or(Box<Expr>, Box<Expr>),
    Compare(Compare, Box<Expr>, Box<Expr>),
    Math(Math, Box<Expr>, Box<Expr>),
}

/// The terms that `and` joins at the top of a condition, each with its text; the whole one where there are none.
pub fn terms<'e>(expr: &'e Expr, text: &'e str) -> Vec<(&'e str, &'e Expr)> {
    fn flatten<'e>(expr: &'e Expr, into: &mut Vec<&'e Expr>) {
        match expr {
            Expr::And(left, right) => {
                flatten(left, into);
                flatten(right, into);
            }
            other => into.push(other),
        }
    }
    let mut exprs = Vec::new();
    flatten(expr, &mut exprs);
    let texts = texts_of_terms(text);
    match texts.len() == exprs.len() {
        true => texts.into_iter().zip(exprs).collect(),
        // Terms within parentheses that need none.
        false => vec![(text, expr)],
    }
}

/// The parts between the words `and` outside of parentheses.
fn texts_of_terms(text: &str) -> Vec<&str> {
    let (mut depth, mut begin, mut parts) = (0_i32, 0, Vec::new());
    for (at, letter) in text.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            ' ' if depth == 0 && text[at..].starts_with(" and ") => {
                parts.push(text[begin..at].trim());
                begin = at + " and ".len();
            }
            _ => {}
        }
    }
    parts.push(text.get(begin..).unwrap_or_default().trim());
    parts
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    Truth,
    Number(Dim),
}

impl fmt::Display for Type {
    fn fmt(&self, to: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Type::Truth => to.write_str("a condition"),
            Type::Number(dim) => write!(to, "{dim}"),
        }
    }
}

/// A condition: what holds or not.
pub fn condition(text: &str) -> Result<Expr, String> {
    match parse(text)? {
        (expr, Type::Truth) => Ok(expr),
        (_, found) => Err(format!("{text:?} is {found}, not a condition; compare it, as in `cores < 2`")),
    }
}

/// A number of this dimension.
pub fn number(text: &str, wanted: Dim) -> Result<Expr, String> {
    match parse(text)? {
        (expr, Type::Number(dim)) if dim == wanted => Ok(expr),
        (_, found) => Err(format!("{text:?} is {found}, not {wanted}")),
    }
}

pub fn parse(text: &str) -> Result<(Expr, Type), String> {
    if text.len() > LENGTH_MAX {
        return Err(format!("longer than {LENGTH_MAX} bytes"));
    }
    let mut parser = Parser { tokens: tokens(text)?, at: 0, depth: 0 };
    let parsed = parser.any()?;
    match parser.tokens.get(parser.at) {
        None => Ok(parsed),
        Some(token) => Err(format!("unexpected {token} in {text:?}")),
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Word(String),
    Number(f64, Dim),
    Sign(&'static str),
}

impl fmt::Display for Token {
    fn fmt(&self, to: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Token::Word(word) => write!(to, "{word:?}"),
            Token::Number(number, _) => write!(to, "{number}"),
            Token::Sign(sign) => write!(to, "{sign:?}"),
        }
    }
}

/// Longer signs before those that they begin with.
const SIGNS: [&str; 13] = ["<=", ">=", "==", "!=", "<", ">", "(", ")", "+", "-", "*", "/", ","];
const UNITS: [(&str, f64, Dim); 14] = [
    ("", 1.0, Dim::ONE),
    ("%", 0.01, Dim::ONE),
    ("s", 1.0, Dim::SECONDS),
    ("min", 60.0, Dim::SECONDS),
    ("h", 3600.0, Dim::SECONDS),
    ("d", 86_400.0, Dim::SECONDS),
    ("B", 1.0, Dim::BYTES),
    ("KiB", 1024.0, Dim::BYTES),
    ("MiB", 1_048_576.0, Dim::BYTES),
    ("GiB", 1_073_741_824.0, Dim::BYTES),
    ("J", 1.0, Dim::JOULES),
    ("kWh", 3_600_000.0, Dim::JOULES),
    ("W", 1.0, Dim::JOULES.per_second()),
    ("MiB/s", 1_048_576.0, Dim::BYTES.per_second()),
];

fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let mut found = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = if first.is_ascii_digit() {
            let digits = rest.find(|letter: char| !letter.is_ascii_digit() && letter != '.');
            let digits = digits.unwrap_or(rest.len());
            let unit = rest[digits..].find(|letter: char| !letter.is_ascii_alphabetic() && letter != '%');
            let mut end = digits + unit.unwrap_or(rest.len() - digits);
            if rest[end..].starts_with("/s") && rest[digits..end].ends_with("iB") {
                end += "/s".len();
            }
            found.push(literal(&rest[..digits], &rest[digits..end])?);
            end
        } else if first.is_ascii_alphabetic() {
            let end = rest.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
            let end = end.unwrap_or(rest.len());
            found.push(Token::Word(rest[..end].to_owned()));
            end
        } else if let Some(sign) = SIGNS.into_iter().find(|sign| rest.starts_with(sign)) {
            found.push(Token::Sign(sign));
            sign.len()
        } else {
            return Err(format!("unexpected character {first:?} in {text:?}"));
        };
        rest = rest[length..].trim_start();
    }
    Ok(found)
}

fn literal(digits: &str, unit: &str) -> Result<Token, String> {
    let value: f64 = digits.parse().map_err(|_| format!("{digits:?} is not a number"))?;
    let factor = UNITS.into_iter().find(|(name, ..)| *name == unit).map_or(1.0, |(_, factor, _)| factor);
    if value * factor > NUMBER_MAX {
        let shown: String = digits.chars().take(20).collect();
        let dots = if digits.len() > shown.len() { "…" } else { "" };
        return Err(format!("{shown}{dots}{unit} is larger than anything that is measured"));
    }
    match UNITS.into_iter().find(|(name, ..)| *name == unit) {
        Some((_, factor, dim)) => Ok(Token::Number(value * factor, dim)),
        None => {
            let known: Vec<&str> =
                UNITS.iter().map(|(name, ..)| *name).filter(|name| !name.is_empty()).collect();
            Err(format!("unknown unit {unit:?} in {digits}{unit}; known: {}", known.join(", ")))
        }
    }
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
    depth: usize,
}

type Parsed = Result<(Expr, Type), String>;

impl Parser {
    fn sign(&mut self, wanted: &[&'static str]) -> Option<&'static str> {
        let Some(Token::Sign(sign)) = self.tokens.get(self.at) else { return None };
        let found = wanted.iter().find(|wanted| *wanted == sign)?;
        self.at += 1;
        Some(found)
    }

    fn word(&mut self, wanted: &str) -> bool {
        let is_it = matches!(self.tokens.get(self.at), Some(Token::Word(word)) if word == wanted);
        self.at += usize::from(is_it);
        is_it
    }

    fn expect(&mut self, sign: &'static str) -> Result<(), String> {
        match self.sign(&[sign]) {
            Some(_) => Ok(()),
            None => Err(format!("{sign:?} is missing{}", self.found())),
        }
    }

    fn found(&self) -> String {
        self.tokens.get(self.at).map_or(" at the end".to_owned(), |token| format!(" before {token}"))
    }

    fn any(&mut self) -> Parsed {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(format!("nested deeper than {DEPTH_MAX}"));
        }
        let mut left = self.all()?;
        while self.word("or") {
            let right = self.all()?;
            left = joined(Expr::Or, left, right, "or")?;
        }
        self.depth -= 1;
        Ok(left)
    }

    fn all(&mut self) -> Parsed {
        let mut left = self.negation()?;
        while self.word("and") {
            let right = self.negation()?;
            left = joined(Expr::And, left, right, "and")?;
        }
        Ok(left)
    }

    fn negation(&mut self) -> Parsed {
        let mut is_negated = false;
        while self.word("not") {
            is_negated = !is_negated;
        }
        let (expr, kind) = self.comparison()?;
        match (is_negated, kind) {
            (false, _) => Ok((expr, kind)),
            (true, Type::Truth) => Ok((Expr::Not(Box::new(expr)), kind)),
            (true, kind) => Err(format!("`not` needs a condition, not {kind}")),
        }
    }

    fn comparison(&mut self) -> Parsed {
        let (left, kind) = self.sum()?;
        let Some(sign) = self.sign(&["<=", ">=", "==", "!=", "<", ">"]) else { return Ok((left, kind)) };
        let (right, other) = self.sum()?;
        let compare = match sign {
            "<" => Compare::Less,
            "<=" => Compare::LessOrEqual,
            ">" => Compare::Greater,
            ">=" => Compare::GreaterOrEqual,
            "==" => Compare::Equal,
            _ => Compare::NotEqual,
        };
        match (kind, other) {
            (Type::Number(one), Type::Number(other)) if one == other => {
                Ok((Expr::Compare(compare, Box::new(left), Box::new(right)), Type::Truth))
            }
            (kind, other) => Err(format!("cannot compare {kind} with {other}")),
        }
    }

    fn sum(&mut self) -> Parsed {
        let mut left = self.product()?;
        while let Some(sign) = self.sign(&["+", "-"]) {
            let math = if sign == "+" { Math::Add } else { Math::Subtract };
            left = calculated(math, left, self.product()?)?;
        }
        Ok(left)
    }

    fn product(&mut self) -> Parsed {
        let mut left = self.factor()?;
        while let Some(sign) = self.sign(&["*", "/"]) {
            let math = if sign == "*" { Math::Multiply } else { Math::Divide };
            left = calculated(math, left, self.factor()?)?;
        }
        Ok(left)
    }

    fn factor(&mut self) -> Parsed {
        if self.sign(&["("]).is_some() {
            let inner = self.any()?;
            self.expect(")")?;
            return Ok(inner);
        }
        let Some(token) = self.tokens.get(self.at).cloned() else {
            return Err("a name or a number is missing at the end".to_owned());
        };
        self.at += 1;
        match token {
            Token::Number(value, dim) => Ok((Expr::Number(value), Type::Number(dim))),
            Token::Sign(sign) => Err(format!("a name or a number is missing before {sign:?}")),
            Token::Word(word) if self.sign(&["("]).is_some() => self.call(&word),
            Token::Word(word) => named(&word),
        }
    }

    fn call(&mut self, name: &str) -> Parsed {
        // `max(a, b)` is the larger of two numbers, `max(metric)` the highest of one over time.
        let is_of_two = name == "max" && self.tokens.get(self.at + 1) != Some(&Token::Sign(")"));
        let stat = Stat::NAMES.iter().find(|(known, _)| *known == name && !is_of_two);
        if let Some(&(_, stat)) = stat {
            let Some(Token::Word(column)) = self.tokens.get(self.at).cloned() else {
                return Err(format!("{name}(…) needs the name of a metric; see `met metrics`"));
            };
            self.at += 1;
            self.expect(")")?;
            return metric(stat, &column);
        }
        let first = self.any()?;
        if name == "known" {
            self.expect(")")?;
            return match first {
                (expr, Type::Number(_)) => Ok((Expr::Known(Box::new(expr)), Type::Truth)),
                (_, kind) => Err(format!("known(…) needs a number, not {kind}")),
            };
        }
        let math = match name {
            "min" => Math::Min,
            "max" => Math::Max,
            _ => {
                return Err(format!(
                    "unknown function {name:?}; known: known, min, max, total, mean, p95, rate"
                ));
            }
        };
        self.expect(",")?;
        let second = self.any()?;
        self.expect(")")?;
        calculated(math, first, second)
    }
}

fn joined(
    make: fn(Box<Expr>, Box<Expr>) -> Expr,
    left: (Expr, Type),
    right: (Expr, Type),
    word: &str,
) -> Parsed {
    match (left.1, right.1) {
        (Type::Truth, Type::Truth) => Ok((make(Box::new(left.0), Box::new(right.0)), Type::Truth)),
        (Type::Truth, kind) | (kind, _) => Err(format!("`{word}` needs conditions, not {kind}")),
    }
}

fn calculated(math: Math, left: (Expr, Type), right: (Expr, Type)) -> Parsed {
    let (Type::Number(one), Type::Number(other)) = (left.1, right.1) else {
        return Err("conditions cannot be calculated with".to_owned());
    };
    let dim = match math {
        Math::Multiply => one.times(other, 1).ok_or("the dimension is too large")?,
        Math::Divide => one.times(other, -1).ok_or("the dimension is too large")?,
        _ if one == other => one,
        _ => return Err(format!("cannot add or compare {one} and {other}")),
    };
    Ok((Expr::Math(math, Box::new(left.0), Box::new(right.0)), Type::Number(dim)))
}

fn named(word: &str) -> Parsed {
    match fields::find(word) {
        Some(field) => Ok((Expr::Field(field), Type::Number(field.shown.dim()))),
        None => Err(format!("unknown field {word:?}; `met check --fields` lists them")),
    }
}

fn metric(stat: Stat, name: &str) -> Parsed {
    let Some(column) = JOB.columns.iter().position(|column| column.json_name() == name) else {
        return Err(format!("unknown metric {name:?}; see `met metrics`"));
    };
    let of = Dim::of(&JOB.columns[column]);
    let is_counter = JOB.columns[column].kind == met_core::Kind::Counter;
    let dim = match stat {
        Stat::Total => of,
        _ if is_counter => of.per_second(),
        Stat::Rate => return Err(format!("{name} is a level and has no rate; use mean({name})")),
        _ => of,
    };
    Ok((Expr::Metric(stat, column), Type::Number(dim)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn complaint(text: &str) -> String {
        condition(text).unwrap_err()
    }

    #[test]
    fn the_terms_of_a_condition_have_their_own_text() {
        let of = |text: &str| {
            let whole = condition(text).unwrap();
            let found = terms(&whole, text);
            // Each text alone is the term.
            for (text, term) in &found {
                assert_eq!(condition(text).as_ref(), Ok(*term), "{text}");
            }
            found.iter().map(|(text, _)| (*text).to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(
            of("cpus >= 2 and not cores < 1 and gpus > 0"),
            ["cpus >= 2", "not cores < 1", "gpus > 0"]
        );
        assert_eq!(of("cpus > 2 and (cores < 1 or gpus > 0)"), ["cpus > 2", "(cores < 1 or gpus > 0)"]);
        for whole in
            ["cpus > 2", "cpus > 2 and cores < 1 or gpus > 0", "(cpus > 2 and cores < 1) and gpus > 0"]
        {
            assert_eq!(of(whole), [whole], "no list of terms");
        }
    }

    #[test]
    fn conditions_are_read_with_the_usual_precedence() {
        let same = |one: &str, other: &str| assert_eq!(condition(one), condition(other), "{one}");
        same("cpus > 2 and cores < 1 or gpus > 0", "((cpus > 2) and (cores < 1)) or (gpus > 0)");
        same("not cpus > 2 and cores < 1", "(not cpus > 2) and cores < 1");
        same("cores < 50% * cpus + 1", "cores < (0.5 * cpus) + 1");
        same("memory_held > 4GiB", "memory_held>4096MiB");
        same("wall >= 10min", "wall >= 600s");
        assert!(condition("cores > max(cpus, 1) and max(cores_peak) < min(cpus / 2, 4)").is_ok());
    }

    #[test]
    fn units_are_checked() {
        assert_eq!(complaint("wall > 5"), "cannot compare seconds with a plain number");
        assert_eq!(complaint("memory_held / wall > 1s"), "cannot compare bytes seconds^-1 with seconds");
        assert_eq!(complaint("wall + cpus > 5s"), "cannot add or compare seconds and a plain number");
        assert!(condition("rate(read_bytes) > 100MiB/s").is_ok());
        assert!(condition("mean(memory_needed_bytes) > 1GiB").is_ok());
        assert!(condition("total(cpu_seconds) / wall > 2").is_ok());
        assert_eq!(complaint("wall"), "\"wall\" is seconds, not a condition; compare it, as in `cores < 2`");
    }

    #[test]
    fn mistakes_are_named() {
        assert_eq!(complaint("cors < 2"), "unknown field \"cors\"; `met check --fields` lists them");
        assert_eq!(complaint("mean(cpus) > 2"), "unknown metric \"cpus\"; see `met metrics`");
        assert_eq!(complaint("cpus > 2 cores"), "unexpected \"cores\" in \"cpus > 2 cores\"");
        assert_eq!(complaint("cpus >"), "a name or a number is missing at the end");
        assert_eq!(complaint("cpus > 2 and"), "a name or a number is missing at the end");
        assert_eq!(complaint("(cpus > 2"), "\")\" is missing at the end");
        assert!(complaint("cpus > 2x").starts_with("unknown unit \"x\" in 2x; known: %, s"));
        let large = "99999999999999999999… is larger than anything that is measured";
        assert_eq!(complaint(&format!("cpus > {}", "9".repeat(400))), large);
        assert_eq!(
            complaint("memory_held > 1000000000GiB"),
            "1000000000GiB is larger than anything that is measured"
        );
        assert_eq!(complaint("cpus $ 2"), "unexpected character '$' in \"cpus $ 2\"");
        assert_eq!(complaint(&"(".repeat(100)), "nested deeper than 32");
        assert_eq!(complaint(&"a".repeat(9000)), "longer than 2000 bytes");
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in "[a-z0-9_%.<>=!()+*/, é-]{0,60}") {
            let _ = parse(&text);
        }

        #[test]
        fn any_words_are_parsed_or_refused(words in proptest::collection::vec(
            proptest::sample::select(vec!["cpus", "wall", "(", ")", "<", "and", "or", "not", "2", "5%", "known", "min",
                ",", "mean", "cpu_seconds", "+", "/"]), 0..20)) {
            let _ = parse(&words.join(" "));
        }
    }
}
