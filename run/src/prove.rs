//! Proofs: that a layout equals the unsplit oracle, on a panel of small models, on one model, on drawn or
//! saved cases, or, on a card, on whole numbers.
mod cases;

pub use cases::{draw, replay};

use crate::card::{kernels, whole_numbers};
use crate::device::{DeviceName, first_card};
use crate::event::Observer;
use crate::records;
use layers::{Design, Shape};
use parallel::dtype::DtypeName;
use parallel::{Entry, Layout, Network, Result, bail, budget, dump};
use prove::cases::{CampaignReport, Certificate, certify_panel, image, never_ran};
use prove::{KEYS, Keys, Subject, Verdict, certify};
use std::path::PathBuf;
use tensor::{Key, mix};

/// Returns a key that no earlier run had.
#[must_use]
pub fn fresh_key() -> Key {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    Key(mix(now.map_or(0, |d| d.as_nanos() as u64) ^ u64::from(std::process::id())))
}

/// A layout to prove.
pub struct ProofRun {
    /// The layout; for one model, with its split.
    pub layout: Layout,
    /// The first key.
    pub key: Key,
    /// Least number of keys, if one is wanted.
    pub keys: Option<usize>,
    /// Network between the ranks.
    pub network: Network,
}

/// A model to prove a layout on.
pub struct ProvenModel {
    /// The model.
    pub design: Design,
    /// Its parameters, as files name them.
    pub entries: Vec<Entry>,
    /// Folder for the first step under the first key.
    pub dump: Option<PathBuf>,
    /// True if a small image may stand for the model where this machine lacks the memory for it.
    pub has_image: bool,
}

impl ProofRun {
    /// Checks the number of keys.
    ///
    /// # Errors
    /// If it is out of range.
    pub fn check(&self) -> Result<()> {
        match self.keys.filter(|keys| !(1..=*KEYS.end()).contains(keys)) {
            Some(keys) => bail!("--keys is {keys}; it must be 1 to {}", KEYS.end()),
            None => Ok(()),
        }
    }
    fn all_keys(&self) -> Keys<'static> {
        Keys::Sure(self.key, self.keys.unwrap_or(*KEYS.start()))
    }
    /// Proves the layout on the panel, and tells the certificate. Returns true if all was equal.
    ///
    /// # Errors
    /// If the layout fits no model of the panel, memory is too small, or the observer fails.
    pub fn on_panel(&self, observer: &Observer) -> Result<bool> {
        let reported = |name: &str| drop(observer.doing(&format!("proving {name}")));
        let certificate = certify_panel(&self.layout, self.all_keys(), (&self.network, &reported))?;
        observer.record(&certificate)?;
        observer.say(&certificate.statement())?;
        Ok(certificate.verdict.equal)
    }
    /// Proves the layout on a model, or on its small image, and tells the verdict. Returns true if all was
    /// equal.
    ///
    /// # Errors
    /// If the layout does not fit, memory is too small, a file cannot be written, or the observer fails.
    pub fn on_model(&self, of: &ProvenModel, observer: &Observer) -> Result<bool> {
        let Self { layout, key, network, .. } = self;
        layout.fits(&of.design)?;
        let mut subject = Subject::smallest(of.design.clone(), layout)?;
        let mut words = None;
        if let Err(why) = prove::check(&subject, layout, network) {
            if network.processes.is_some() {
                return Err(why); // each has another idea of what is free
            }
            let (small, image) = of.image(&subject, layout).ok_or(why.clone())?;
            let image = format!("{why}. Its small image is proven instead, with all of its parts: {image}.");
            observer.note(&format!("note: {image}"))?;
            (subject, words) = (Subject::smallest(small, layout)?, Some(image));
            prove::check(&subject, layout, network)?;
        }
        of.dump.as_deref().map_or(Ok(()), dump::prepare)?;
        let watch = |what: &str| drop(observer.doing(what));
        let verdict = certify(&subject, layout, self.all_keys(), (network, &watch))?;
        let verdict = Verdict { never_ran: never_ran(&subject, layout), image: words, ..verdict };
        of.dump.iter().try_for_each(|dir| prove::dump(&subject, layout, *key, dir, &of.entries))?;
        tell(&verdict, observer)
    }
}

impl ProvenModel {
    /// Small image of the model, if this machine lacks the memory for the model. `None` if the proof fails
    /// for another reason, or if an image may not stand for the model.
    fn image(&self, subject: &Subject, layout: &Layout) -> Option<(Shape, String)> {
        let shape = subject.model.shape().filter(|_| self.has_image)?;
        let bytes = prove::bytes(subject, layout).ok()?;
        (!budget::fits_in_free(bytes, budget::free())).then(|| image(*shape, layout))?
    }
}

records!(Certificate: "certificate", Verdict: "verdict", CampaignReport: "campaign");

/// Tells a verdict. Returns true if all was equal.
fn tell(verdict: &Verdict, observer: &Observer) -> Result<bool> {
    observer.record(verdict)?;
    observer.say(&verdict.statement())?;
    Ok(verdict.equal)
}

/// Text below the table of a card's proof.
const STATEMENT: &str = "\
On whole numbers every sum is exact in any order: there linear layers, collectives and products equal the field's oracle, or the\n\
host's product, bit for bit. Kernels that round equal the host's in f64 to the rounding of their dtype. The layout's program itself\n\
is proven in the field, without --device.";

/// Proves a layout on a card, and tells the table: on whole numbers linear layers, collectives and products
/// are exact, and equal the field's oracle bit for bit; every other kernel is compared with the host's in
/// f64. Returns true if all is as wanted.
///
/// # Errors
/// If the layout does not fit, or the card or the observer fails.
pub fn on_card(
    layout: &Layout,
    numbers: &[DtypeName],
    device: DeviceName,
    observer: &Observer,
) -> Result<bool> {
    let card = first_card()?;
    let mut rows = whole_numbers(layout, numbers, device, observer)?;
    rows.extend(kernels(&card, observer));
    observer.rows(&rows)?;
    observer.say(STATEMENT)?;
    Ok(rows.iter().all(|row| row.well == Some(true)))
}
