//! Constants of optimizers: a table of each from which flags, files, checks and words follow.

/// A constant of an optimizer: one value or several.
#[derive(Debug)]
pub struct Constant {
    /// Its key, and its flag: `weight-decay`; in files with `_` for `-`.
    pub key: &'static str,
    /// The usual values.
    pub usual: &'static [f64],
    /// The values that it may have.
    pub range: Range,
    /// Its description, for help.
    pub help: &'static str,
}

/// Values that a constant may have, as f32 holds them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Range {
    /// 0 or more.
    AtLeast0,
    /// Above 0.
    Above0,
    /// 0 or more and below 1.
    Below1,
    /// Above 0: a learning rate. Its value is a factor of the step's rate; flags state the rate.
    Rate,
    /// A power of two in this range: the elements of a block.
    PowerOfTwo([usize; 2]),
    /// A name of this list. Its value is the name's place.
    OneOf(&'static [&'static str]),
}

impl Range {
    /// Returns true if the range has this value.
    fn has(self, x: f64) -> bool {
        let x = x as f32;
        match self {
            Self::AtLeast0 => x.is_finite() && x >= 0.0,
            Self::Above0 | Self::Rate => x.is_finite() && x > 0.0,
            Self::Below1 => (0.0..1.0).contains(&x),
            Self::PowerOfTwo([least, most]) => (least..=most).any(|n| n.is_power_of_two() && n as f32 == x),
            Self::OneOf(names) => (0..names.len()).any(|i| i as f32 == x),
        }
    }
    /// Describes the range.
    fn words(self) -> String {
        match self {
            Self::AtLeast0 => "0 or more".into(),
            Self::Above0 | Self::Rate => "above 0 in f32".into(),
            Self::Below1 => "0 or more and below 1 in f32".into(),
            Self::PowerOfTwo([least, most]) => format!("a power of two from {least} to {most}"),
            Self::OneOf(names) => names.join(" or "),
        }
    }
    /// Values in the range that drawn cases use beside the usual ones, or in their place if models are small
    /// beside these; each differs from all rounded values.
    fn drawn(self) -> &'static [f64] {
        match self {
            Self::AtLeast0 => &[0.0, 0.5],
            Self::Above0 => &[0.25],
            Self::Below1 => &[0.5, 0.25],
            Self::Rate => &[0.5],
            Self::PowerOfTwo(_) => &[4.0, 8.0],
            Self::OneOf(_) => &[0.0, 1.0],
        }
    }
}

impl Constant {
    /// Returns the values that drawn cases use for the number `i` of the constant.
    pub fn drawn(&self, i: usize) -> Vec<f64> {
        let usual = (!matches!(self.range, Range::PowerOfTwo(_))).then_some(self.usual[i]);
        self.range.drawn().iter().copied().chain(usual).collect()
    }
    /// Validates values.
    ///
    /// # Errors
    /// One sentence with the values seen and wanted.
    pub fn check(&self, values: &[f64]) -> Result<(), String> {
        let (n, wanted) = (self.usual.len(), self.range.words());
        if values.len() == n && values.iter().all(|x| self.range.has(*x)) {
            return Ok(());
        }
        let must = if n == 1 { format!("it must be {wanted}") } else { format!("both must be {wanted}") };
        Err(format!("--{} is {}; {must}", self.key, self.text(values)))
    }
    /// Writes values: `0.9,0.95`, or a name.
    pub fn text(&self, values: &[f64]) -> String {
        if let (Range::OneOf(names), [at]) = (self.range, values)
            && let Some(name) = names.get(*at as usize)
        {
            return (*name).into();
        }
        let text = |x: &f64| if *x != 0.0 && x.abs() < 1e-3 { format!("{x:e}") } else { x.to_string() };
        values.iter().map(text).collect::<Vec<_>>().join(",")
    }
    /// Parses values, in any range.
    ///
    /// # Errors
    /// If the text has another number of values, or they are not numbers, or not a name of the list.
    pub fn parse(&self, text: &str) -> Result<Vec<f64>, String> {
        if let Range::OneOf(names) = self.range {
            let index = names.iter().position(|name| *name == text);
            return index
                .map(|at| vec![at as f64])
                .ok_or_else(|| format!("{text:?} is not {}", self.range.words()));
        }
        let values: Option<Vec<f64>> = text.split(',').map(|x| x.trim().parse().ok()).collect();
        let numbers = if self.usual.len() == 1 { "a number" } else { "two numbers" };
        let wanted = || format!("{text:?} is not {numbers} such as {}", self.text(self.usual));
        values.filter(|values| values.len() == self.usual.len()).ok_or_else(wanted)
    }
}
