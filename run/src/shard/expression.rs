//! Equations of products, such as `Z = (X W) V`, and statements of shardings, such as `X=[2,1]`.
use layers::counted;
use layers::graph::{Graph, OperatorKind, TensorSource};
use parallel::{Error, Result, bail};
use std::collections::BTreeMap;
use tensor::quoted::quoted;

/// Rows and columns of a matrix whose size no flag gives.
const SIZE: usize = 64;
/// The most rows, columns or blocks of a matrix.
const MOST: usize = 1 << 20;

/// Numbers of blocks of rows and of columns, by the name of the matrix.
pub type Statements = BTreeMap<String, [usize; 2]>;

/// Parses two numbers between these characters: `[2,1]`, `64x32`.
fn pair(text: &str, open: &str, between: char, close: &str) -> Option<[usize; 2]> {
    let (a, b) = text.trim().strip_prefix(open)?.strip_suffix(close)?.split_once(between)?;
    let number = |text: &str| text.trim().parse().ok().filter(|n| (1..=MOST).contains(n));
    Some([number(a)?, number(b)?])
}

/// Parses `NAME=ROWSxCOLUMNS`.
///
/// # Errors
/// If it is written in another way.
pub fn sized(text: &str) -> std::result::Result<(String, [usize; 2]), String> {
    let named = text.split_once('=').and_then(|(name, size)| Some((name, pair(size, "", 'x', "")?)));
    let (name, size) = named.ok_or(format!("write NAME=ROWSxCOLUMNS, such as X=64x32, each 1 to {MOST}"))?;
    Ok((name.trim().to_string(), size))
}

/// Splits arguments into equations, each a name and its product, and statements.
///
/// # Errors
/// If one is neither, or a matrix has two shardings.
pub fn sorted(all: &[String]) -> Result<(Vec<(&str, &str)>, Statements)> {
    let (mut equations, mut statements) = (Vec::new(), Statements::new());
    for text in all {
        let shown = quoted(text);
        let Some((name, right)) = text.split_once('=') else {
            bail!("{shown} is neither an equation, such as \"Z = X W\", nor a sharding, such as X=[2,1]");
        };
        let name = name.trim();
        if !right.trim_start().starts_with('[') {
            equations.push((name, right.trim()));
            continue;
        }
        let Some(blocks) = pair(right, "[", ',', "]") else {
            bail!("{shown} is no sharding; write blocks of rows and of columns, such as {name}=[2,1]");
        };
        if statements.insert(name.to_string(), blocks).is_some_and(|before| before != blocks) {
            bail!("{name} has two shardings; give one");
        }
    }
    Ok((equations, statements))
}

/// A product under construction.
struct Parser<'a> {
    graph: Graph,
    sizes: &'a [(String, [usize; 2])],
    values: BTreeMap<String, usize>,
    text: &'a str,
    at: usize, // in bytes
}

/// Returns the graph of equations. Matrices that no equation gives are parameters. A result that is stated,
/// and the last one, is a value, of which no rank has a partial sum.
///
/// # Errors
/// If an equation is no product, or its matrices do not fit each other.
pub fn graph(
    equations: &[(&str, &str)],
    statements: &Statements,
    sizes: &[(String, [usize; 2])],
) -> Result<Graph> {
    let mut parser = Parser { graph: Graph::default(), sizes, values: BTreeMap::new(), text: "", at: 0 };
    for (n, &(name, text)) in equations.iter().enumerate() {
        if name.is_empty() || !name.chars().all(is_of_name) {
            bail!("{} is no name of a matrix; use letters, digits and _", quoted(name));
        }
        if parser.values.contains_key(name) {
            bail!("{name} is given twice, or used before its equation");
        }
        (parser.text, parser.at) = (text, 0);
        let mut result = parser.product(Some(name))?;
        if !parser.rest().is_empty() {
            return Err(parser.unexpected(""));
        }
        if parser.values.contains_key(name) {
            bail!("{name} is given by itself; give its result another name");
        }
        if statements.contains_key(name) || n + 1 == equations.len() {
            result = parser.graph.apply(OperatorKind::Value, &[result], name);
        }
        parser.values.insert(name.to_string(), result);
    }
    let graph = parser.graph;
    let unused = graph
        .operators
        .iter()
        .map(|operator| operator.output)
        .find(|&tensor| tensor != graph.result() && graph.takers(tensor).next().is_none());
    if let Some(tensor) = unused {
        let name = &graph.tensors[tensor].name;
        bail!("{name} is given and never used; only the last equation's result may be");
    }
    if let Some((name, _)) = sizes.iter().find(|(name, _)| !graph.tensors.iter().any(|t| *t.name == **name)) {
        bail!("--size {name}: no equation has a matrix of this name");
    }
    Ok(graph)
}

fn is_of_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

impl<'a> Parser<'a> {
    /// The text from the next character on that is no space.
    fn rest(&mut self) -> &'a str {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
        &self.text[self.at..]
    }
    /// Says which character is wrong, or, at the end, what is missing.
    fn unexpected(&mut self, missing: &str) -> Error {
        let character = self.rest().chars().next();
        let place = self.text[..self.at].chars().count() + 1;
        Error::new(match character {
            Some(c) => format!(
                "{:?} at character {place} of {} is no part of a product; write names, spaces and parentheses",
                c.to_string(),
                quoted(self.text)
            ),
            None => format!("{missing} of {}", quoted(self.text)),
        })
    }
    /// Parses factors, and multiplies them from left to right. The last product has this name.
    fn product(&mut self, name: Option<&str>) -> Result<usize> {
        let start = self.at;
        let mut x = self.factor()?;
        let mut factors = 1;
        while self.rest().starts_with(|c| c == '(' || is_of_name(c)) {
            let w = self.factor()?;
            let is_last = !self.rest().starts_with(|c| c == '(' || is_of_name(c));
            let own = self.text[start..self.at].trim();
            let factor =
                if own.starts_with('(') && own.ends_with(')') { own.into() } else { format!("({own})") };
            x = self.times(x, w, name.filter(|_| is_last).unwrap_or(&factor))?;
            factors += 1;
        }
        if let Some(name) = name
            && factors == 1
            && self.rest().is_empty()
        {
            bail!("{name} = {} is no product; write two factors, such as {name} = X W", self.text.trim());
        }
        Ok(x)
    }
    fn factor(&mut self) -> Result<usize> {
        let rest = self.rest();
        if rest.starts_with('(') {
            self.at += 1;
            let inside = self.product(None)?;
            if !self.rest().starts_with(')') {
                let place = self.text.chars().count() + 1;
                return Err(self.unexpected(&format!("a ) is missing at character {place}")));
            }
            self.at += 1;
            return Ok(inside);
        }
        let name = rest.split(|c| !is_of_name(c)).next().unwrap_or_default();
        if name.is_empty() {
            return Err(self.unexpected("a factor is missing at the end"));
        }
        self.at += name.len();
        if let Some(&known) = self.values.get(name) {
            return Ok(known);
        }
        let given = self.sizes.iter().rfind(|(of, _)| of == name);
        let shape = given.map_or([SIZE, SIZE], |(_, size)| *size);
        let tensor = self.graph.add(name, shape, TensorSource::Parameter);
        self.values.insert(name.to_string(), tensor);
        Ok(tensor)
    }
    fn times(&mut self, x: usize, w: usize, name: &str) -> Result<usize> {
        let [a, b] = [x, w].map(|tensor| &self.graph.tensors[tensor]);
        if a.shape[1] != b.shape[0] {
            let [columns, rows] = [counted(a.shape[1], "column"), counted(b.shape[0], "row")];
            bail!(
                "{} has {columns} and {} has {rows}; the factors of {name} must have as many",
                a.name,
                b.name
            );
        }
        Ok(self.graph.apply(OperatorKind::Product, &[x, w], name))
    }
}
