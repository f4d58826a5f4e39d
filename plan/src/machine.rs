//! Machines as data: speeds of kernels, memory and links, from files of JSON.
//!
//! ```text
//! kernel    launch + max(operations / rate, bytes / rate)     rates depend on the kernel and its size
//! call      Σ over levels of steps·latency + bytes / (bandwidth of the narrowest level)
//! ```
//! A level is a block of consecutive ranks, such as a node. Ranks of a group that lie in one block pass
//! messages to another block side by side, each over its own link.
//!
//! Source: Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009; Thakur, Rabenseifner, Gropp,
//! "Optimization of collective communication operations in MPICH", 2005 (rings and trees).
use comm::{GhostCall, Op};
use parallel::{Error, Result, bail};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use tensor::quoted::{quoted, sentence};
use tensor::{KernelWork, StoreKind, files};

/// Machines that have a name.
const NAMED: [(&str, &str); 4] = [
    ("a100", include_str!("../machines/a100.json")),
    ("a100-2022", include_str!("../machines/a100-2022.json")),
    ("h100", include_str!("../machines/h100.json")),
    ("h200", include_str!("../machines/h200.json")),
];

/// A machine: cards, or processors, that are all alike.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Description.
    pub about: String,
    /// Bytes of memory of a rank.
    pub memory: Sourced,
    /// The most operations per second that a rank's products could reach, by dtype: the peak, of which
    /// reports give a share.
    pub peak: BTreeMap<String, Sourced>,
    /// Seconds that a kernel takes beyond its work.
    pub launch: Sourced,
    /// Rates by kernel: its name in profiles, or that of its kind, or `*` for all others; with `/` and
    /// a dtype, or `@` and the features of a head, only for these.
    pub kernels: BTreeMap<String, KernelRates>,
    /// Speed of kernels while a collective is under way, as a fraction.
    pub overlap: Sourced,
    /// Bytes per second of a move between a rank and the host's memory.
    pub host: Sourced,
    /// Bytes per second of a move between a rank and its file, the mean of reading and writing.
    pub file: Sourced,
    /// Number of cores that ranks share, if they do: with more ranks, each is slower.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<usize>,
    /// Levels of links, the innermost first; the last one has any number of ranks.
    pub levels: Vec<Level>,
}

/// A number and its source.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sourced {
    /// The number.
    pub value: f64,
    /// Its source.
    pub source: String,
}

/// Rates of a kernel by its size.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelRates {
    /// Operations, and operations per second; none if only bytes count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub operations: Vec<[f64; 2]>,
    /// Bytes, and bytes per second; none if they are those of `*`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bytes: Vec<[f64; 2]>,
    /// Their source.
    pub source: String,
}

/// A block of consecutive ranks, and the links by which a rank reaches the others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Level {
    /// Its name: node, rack.
    pub name: String,
    /// Number of ranks of a block; none for the last level, which has all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks: Option<usize>,
    /// Seconds before the first byte of a message.
    pub latency: Sourced,
    /// Bytes per second that a rank sends.
    pub bandwidth: Sourced,
    /// Bytes per second of some operations, by name, where they differ.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub operations: BTreeMap<String, Sourced>,
}

impl Level {
    /// Bytes per second that a rank sends in an operation.
    fn bandwidth(&self, op: Op) -> f64 {
        self.operations.get(op.name()).unwrap_or(&self.bandwidth).value
    }
}

impl Machine {
    /// Returns the machine of this name, or that of a file.
    ///
    /// # Errors
    /// If there is no such name or file, or it is not a machine: which number is missing or wrong.
    pub fn named(name: &str) -> Result<Self> {
        if let Some((_, text)) = NAMED.iter().find(|(known, _)| *known == name) {
            return Self::read(text, name);
        }
        if !Path::new(name).exists() {
            let names: Vec<_> = NAMED.iter().map(|(name, _)| *name).collect();
            bail!("{} is neither a machine ({}) nor a file", quoted(name), names.join(", "));
        }
        let text = files::read(Path::new(name))?;
        Self::read(&String::from_utf8_lossy(&text), name)
    }
    /// Reads a machine from JSON.
    ///
    /// # Errors
    /// One sentence on what is missing or wrong.
    pub fn read(text: &str, name: &str) -> Result<Self> {
        let machine: Self = serde_json::from_str(text)
            .map_err(|why| Error::new(format!("{name} is not a machine: {}", sentence(&why.to_string()))))?;
        machine.check().map_err(|why| Error::new(format!("{name} is not a machine: {why}")))?;
        Ok(machine)
    }
    fn check(&self) -> std::result::Result<(), String> {
        let mut numbers =
            vec![("memory", self.memory.value), ("host", self.host.value), ("file", self.file.value)];
        numbers.extend(self.peak.values().map(|known| ("peak", known.value)));
        let links = self.levels.iter().flat_map(|level| level.operations.values().chain([&level.bandwidth]));
        numbers.extend(links.map(|known| ("bandwidth", known.value)));
        numbers.push(("overlap", self.overlap.value));
        let all = self.kernels.values().flat_map(|rates| rates.operations.iter().chain(&rates.bytes));
        numbers.extend(all.flatten().map(|number| ("kernels", *number)));
        if let Some((what, number)) = numbers.iter().find(|(_, n)| !(1e-9..=1e30).contains(n)) {
            return Err(format!("{what} has the number {number:?}; it must be 10^-9 to 10^30"));
        }
        let latencies = self.levels.iter().map(|level| level.latency.value).chain([self.launch.value]);
        if let Some(number) = latencies.into_iter().find(|n| !(0.0..=1e9).contains(n)) {
            return Err(format!("a latency or launch is {number:?}; it must be 0 to 10^9"));
        }
        if self.overlap.value > 1.0 {
            return Err(format!("overlap is {}; it must be at most 1", self.overlap.value));
        }
        if self.kernels.get("*").is_none_or(|rates| rates.bytes.is_empty()) {
            return Err("kernels lacks \"*\" with bytes, the rate of all other kernels".into());
        }
        if let Some((name, _)) =
            self.kernels.iter().find(|(_, rates)| !rising(&rates.operations) || !rising(&rates.bytes))
        {
            return Err(format!(
                "the sizes of {name:?} in kernels must rise, and its rates no faster than they"
            ));
        }
        let sizes: Vec<_> = self.levels.iter().map(|level| level.ranks.unwrap_or(usize::MAX)).collect();
        let nested = sizes.windows(2).all(|two| two[0] < two[1]) && sizes.last() == Some(&usize::MAX);
        if !nested || sizes.contains(&0) || self.cores == Some(0) {
            return Err("levels must have more and more ranks, and the last one no number".into());
        }
        Ok(())
    }
    /// Seconds of a kernel with these [rates](Self::rates), alone on its rank.
    pub(crate) fn kernel(&self, rates: &KernelRates, work: &KernelWork) -> f64 {
        let (operations, bytes) = (work.flops as f64, work.bytes as f64);
        let computing = if operations > 0.0 { operations / at(&rates.operations, operations) } else { 0.0 };
        let moving = if bytes > 0.0 { bytes / at(&rates.bytes, bytes) } else { 0.0 };
        self.launch.value + computing.max(moving)
    }
    /// Returns the rates of a kernel, for operations and for bytes.
    pub(crate) fn rates(&self, work: &KernelWork) -> KernelRates {
        let KernelWork { name, dtype, features, .. } = work;
        let sized = (*features > 0).then(|| self.kernels.get(&format!("{name}@{features}"))).flatten();
        let of = |key: &str| self.kernels.get(&format!("{key}/{dtype}")).or_else(|| self.kernels.get(key));
        let found = sized.or_else(|| [name, work.kind.name(), "*"].into_iter().find_map(of));
        let found = found.expect("checked when the file was read");
        let bytes = if found.bytes.is_empty() { &self.kernels["*"].bytes } else { &found.bytes };
        KernelRates { bytes: bytes.clone(), ..found.clone() }
    }
    /// Returns a machine on which nothing takes longer, and on which the time of a kernel or a call is a
    /// constant and a maximum of multiples of operations and bytes: the best rate of each kernel for all
    /// sizes.
    #[must_use]
    pub fn ideal(&self) -> Self {
        let known = |value| Sourced { value, source: String::new() };
        let best = |rates: &mut Vec<[f64; 2]>| {
            let most = rates.iter().map(|[_, rate]| *rate).reduce(f64::max);
            *rates = most.map(|rate| [1.0, rate]).into_iter().collect();
        };
        let mut ideal = Self { overlap: known(1.0), ..self.clone() };
        ideal.kernels.values_mut().for_each(|rates| {
            best(&mut rates.operations);
            best(&mut rates.bytes);
        });
        ideal
    }
    /// Peak of a rank's products in a dtype; without one, that of the fastest.
    pub fn peak(&self, dtype: &str) -> f64 {
        let known = self.peak.get(dtype).map(|known| known.value);
        known.unwrap_or_else(|| self.peak.values().map(|known| known.value).fold(0.0, f64::max))
    }
    /// Seconds of a move of state to or from a store.
    pub fn moves(&self, store: StoreKind, bytes: usize) -> f64 {
        let rate = match store {
            StoreKind::Host => &self.host,
            StoreKind::File => &self.file,
        };
        self.launch.value + bytes as f64 / rate.value
    }
    /// Index of the level that a call crosses, and its seconds.
    pub fn call(&self, call: &GhostCall) -> (usize, f64) {
        let (parties, bytes) = (call.parties(), call.bytes as f64);
        let within: Vec<usize> = self
            .levels
            .iter()
            .map(|level| level.ranks.map_or(parties, |unit| call.within(unit).min(parties)))
            .collect();
        let top = within.iter().position(|n| *n == parties).unwrap_or(within.len() - 1);
        if call.is_message() {
            let level = &self.levels[top];
            return (top, level.latency.value + bytes / level.bandwidth(call.op));
        }
        let [mut ring, mut tree, mut moving] = [0.0; 3];
        let mut inner = 1.0;
        for (level, &n) in self.levels.iter().zip(&within).take(top + 1) {
            let (n, latency, all) = (n as f64, level.latency.value, parties as f64);
            ring += (all / inner - all / n) * latency;
            tree += (n / inner).log2() * latency;
            // side by side, the ranks of a block send what leaves it; of an all-to-all, each its own part
            let (share, wide) = match call.op {
                Op::AllToAll => ((all - inner) / (all - 1.0).max(1.0), 1.0),
                _ => (1.0, inner),
            };
            moving = f64::max(moving, bytes * share / (level.bandwidth(call.op) * wide));
            inner = n;
        }
        let waits = match call.op {
            Op::AllReduce => 2.0 * ring.min(tree),
            Op::AllGather | Op::ReduceScatter => ring,
            _ => tree,
        };
        (top, waits + moving)
    }
    /// Factor by which ranks that share cores are slower.
    pub fn slower(&self, ranks: usize) -> f64 {
        self.cores.map_or(1.0, |cores| (ranks as f64 / cores as f64).max(1.0))
    }
    /// Factor by which a stage of so many ranks is slower beside others: this number of stages runs at once.
    pub fn slower_beside(&self, stages: usize, ranks: usize) -> f64 {
        self.slower(stages * ranks) / self.slower(ranks)
    }
}

/// True if sizes rise, and the time of more work is never less.
fn rising(rates: &[[f64; 2]]) -> bool {
    rates.windows(2).all(|two| two[0][0] < two[1][0] && two[1][1] / two[0][1] <= two[1][0] / two[0][0])
}

/// The rate at this size: between two rows by their logarithms, beyond the ends that of the end; infinite
/// without rows.
fn at(rates: &[[f64; 2]], size: f64) -> f64 {
    let (Some(first), Some(last)) = (rates.first(), rates.last()) else { return f64::INFINITY };
    match rates.windows(2).find(|two| (two[0][0]..two[1][0]).contains(&size)) {
        Some(&[[from, low], [to, high]]) => {
            let part = (size / from).ln() / (to / from).ln();
            (low.ln() + part * (high / low).ln()).exp()
        }
        _ if size < first[0] => first[1],
        _ => last[1],
    }
}
