//! The proof of a panel, and what it says.
use super::{Member, PANEL};
use crate::verdict::{LIMITS, WHAT, hexadecimal, sure};
use crate::{Difference, Verdict, certify, check};
use parallel::{Result, Scheme, budget};
use serde::Serialize;
use tensor::{Cpu, F61, Key};

/// What the proof of a panel came to.
#[derive(Clone, Debug, Serialize)]
pub struct Certificate {
    /// The layout.
    pub layout: String,
    /// The keys, in hexadecimal.
    pub keys: Vec<String>,
    /// Whether everything was equal.
    pub equal: bool,
    /// log₂ of the probability that a program passes which is wrong on one of the models: the largest of all.
    pub bound_log2: Option<f64>,
    /// Tensors compared, of all models under all keys on all ranks.
    pub tensors: usize,
    /// Elements compared.
    pub elements: usize,
    /// What each model read and learnt, in words.
    pub work: String,
    /// The models that were proven, up to the first that is not equal.
    pub models: Vec<Proven>,
    /// What differs first, on the last of them.
    pub first_difference: Option<Difference>,
}

/// One model of a panel.
#[derive(Clone, Debug, Serialize)]
pub struct Proven {
    /// What it is called.
    pub name: &'static str,
    /// Its sizes and parts, and its optimizer, in words.
    pub model: String,
    /// log₂ of the probability that a program passes which is wrong on it.
    pub bound_log2: Option<f64>,
}

/// Proves a layout on every model of the panel, until one is not equal. `told`: which is next.
///
/// # Errors
/// If no small model fits the layout, or a rank fails.
pub fn certify_panel<'a>(
    scheme: impl Into<Scheme<'a, Cpu<F61>>>,
    keys: &[Key],
    told: &dyn Fn(&str),
) -> Result<Certificate> {
    let scheme = scheme.into();
    let mut all = Certificate {
        layout: scheme.to_string(),
        keys: hexadecimal(keys),
        equal: true,
        bound_log2: Some(f64::NEG_INFINITY),
        tensors: 0,
        elements: 0,
        work: String::new(),
        models: Vec::new(),
        first_difference: None,
    };
    let fits = |member: &Member| check(&member.subject(scheme)?, scheme);
    budget::all(PANEL.iter().map(fits))?; // before the first proof
    for member in PANEL {
        told(member.name);
        let subject = member.subject(scheme)?;
        let verdict = certify(&subject, scheme, keys, &|_| ())?;
        all.work = subject.work();
        all.models.push(Proven {
            name: member.name,
            model: format!("{}; {}", subject.model, subject.learner()),
            bound_log2: verdict.bound_log2,
        });
        all.add(verdict);
        if !all.equal {
            break;
        }
    }
    Ok(all)
}

impl Certificate {
    fn add(&mut self, verdict: Verdict) {
        self.equal &= verdict.equal;
        self.bound_log2 = self.bound_log2.zip(verdict.bound_log2).map(|(a, b)| a.max(b));
        self.tensors += verdict.tensors;
        self.elements += verdict.elements;
        self.first_difference = verdict.first_difference;
    }
    /// The statement, in words: what was shown, how surely, and what it does not say.
    pub fn statement(&self) -> String {
        let Self { layout, work, models, tensors, elements, .. } = self;
        let (keys, n) = (self.keys.join(" and "), models.len());
        if let (Some(difference), Some(Proven { name, model, .. })) = (&self.first_difference, models.last())
        {
            return format!(
                "Not equal: under {layout} and the keys {keys}, of {name} ({model}) {difference}"
            );
        }
        let line = |Proven { name, model, bound_log2 }: &Proven| {
            let bound = bound_log2.map_or_else(|| "no bound".into(), |log2| format!("2^{log2:.1}"));
            format!("  {name} ({bound}): {model}\n")
        };
        let ran: String = models.iter().map(line).collect();
        format!(
            "Randomised proof: under {layout}, generation and training of {n} small models equal the unsplit oracle in \
             the field of 2^61 - 1.\n\
             What ran, with sizes that fit the layout:\n{ran}\
             Each model: {work}.\n\
             Equal bit for bit: {tensors} tensors, {elements} elements ({WHAT}), on every rank, under the keys {keys}.\n\
             For the shapes that ran, {} (opaque functions taken as random).\n{LIMITS}",
            sure("a program that is wrong on one of them", self.bound_log2)
        )
    }
}
