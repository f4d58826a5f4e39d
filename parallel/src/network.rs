//! Connections between the ranks of a run: processes, slow links, timeouts, a trace.
use crate::{Error, Layout, Result, bail};
use algorithms::Link;
use comm::{Axis, Mesh, Processes, StuckReport, Trace, World};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tensor::files::seen;
use tensor::quoted::quoted;
use tensor::{Cpu, Place};

/// How a layout's ranks are connected. The default is as fast as the machine, and keeps no trace.
#[derive(Clone, Debug, Default)]
pub struct Network {
    /// Slow links between the ranks along an axis, at most one for each axis.
    pub links: Vec<(Axis, Link)>,
    /// Longest time that a rank waits for others in one call; a minute if none is given.
    pub timeout: Option<Duration>,
    /// Trace of every run, if one is kept.
    pub trace: Option<Trace>,
    /// Number of steps of which the trace also has layers and kernels, for runs with steps to profile.
    pub profile: usize,
    /// True if ranks count their waits for each other.
    pub counts_waits: bool,
    /// Action on ranks that do not exit although their run has failed.
    pub stuck: Option<StuckReport>,
    /// The processes of the ranks, one each; none if all ranks are threads of this process.
    pub processes: Option<Arc<Processes>>,
}

impl Network {
    /// Creates the world of a layout's ranks over this network. A trace names its runs "`what` under
    /// `layout`".
    ///
    /// # Errors
    /// If there are more ranks than a world can have.
    pub fn world(&self, layout: &Layout, what: &str) -> Result<World> {
        let mut world = layout.world()?;
        for (axis, link) in &self.links {
            world = world.link(*axis, *link);
        }
        if let Some(timeout) = self.timeout {
            world = world.limit(timeout);
        }
        if self.counts_waits {
            world = world.counting_waits();
        }
        if let Some(stuck) = &self.stuck {
            world = world.when_stuck(stuck.clone());
        }
        if let Some(processes) = &self.processes {
            world = world.over(processes)?;
        }
        match &self.trace {
            Some(trace) => Ok(world.traced(trace, format!("{what} under {layout}"))),
            None => Ok(world),
        }
    }
    /// Returns the values of all ranks, by rank, if ranks are processes. If ranks are threads, it returns
    /// only this rank's own, since the world collects them. All ranks call it.
    ///
    /// # Errors
    /// If a collective fails, or a rank's value cannot be read.
    pub fn of_all<T: Serialize + DeserializeOwned, P: Place>(
        &self,
        mesh: &Mesh<P>,
        mine: T,
    ) -> Result<Vec<T>> {
        if self.processes.is_none() {
            return Ok(vec![mine]);
        }
        let mine = serde_json::to_vec(&mine).expect("plain values");
        let results = mesh.world().named("results of ranks").all_gather_values(&mine)?;
        let read = |(rank, theirs): (usize, &Vec<u8>)| {
            let no_such = |why| Error::new(format!("the result of rank {rank} cannot be read: {why}"));
            serde_json::from_slice(theirs).map_err(no_such)
        };
        results.iter().enumerate().map(read).collect()
    }
    /// Checks, if ranks are processes, that they read the same tensors of files: two ranks that read the same
    /// elements of a tensor must have the same values. All ranks call it.
    ///
    /// # Errors
    /// With the first tensor on which two ranks differ; if a collective fails.
    pub fn agrees<P: Place>(&self, mesh: &Mesh<P>) -> Result<()> {
        if self.processes.is_none() {
            return Ok(());
        }
        let mut seen = BTreeMap::new();
        for (rank, tensors) in self.of_all(mesh, seen::tensors())?.into_iter().enumerate() {
            for (name, [numbers, places, digest]) in tensors {
                let key = (name, numbers, places);
                let (other, same) = *seen.entry(key.clone()).or_insert((rank, digest));
                if same != digest {
                    let name = quoted(&key.0);
                    bail!(
                        "ranks {other} and {rank} read different values of the tensor {name}; give both the \
                         same file"
                    );
                }
            }
        }
        Ok(())
    }
    /// Runs work of one rank and returns its result in every process. If ranks are processes, rank 0's runs
    /// it, so that nothing competes with it, and the others wait, however long it takes. All call it.
    ///
    /// # Errors
    /// The error of `work`, the same in every process; if rank 0's process is lost.
    pub fn on_rank_0<T: Serialize + DeserializeOwned + Clone + Send + Sync>(
        &self,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let Some(processes) = &self.processes else { return work() };
        let done = (processes.rank() == 0).then(|| work().map_err(|error| error.why));
        self.of_processes(done)?.swap_remove(0).expect("rank 0 has run it").map_err(Error::new)
    }
    /// Returns the values of all processes, by rank; if ranks are threads, only `own`. All call it, and wait
    /// for the last one, however long it takes.
    ///
    /// # Errors
    /// If a process is lost.
    pub fn of_processes<T: Serialize + DeserializeOwned + Clone + Send + Sync>(
        &self,
        own: T,
    ) -> Result<Vec<T>> {
        const LONGEST: Duration = Duration::from_hours(365 * 24);
        let Some(processes) = &self.processes else { return Ok(vec![own]) };
        let world = World::threads(&[(Axis::Tp, processes.ranks())])?.limit(LONGEST).over(processes)?;
        Ok(world.run(|_: Cpu<f32>, mesh| self.of_all(&mesh, own.clone()))?.swap_remove(0))
    }
    /// Number of a layout's ranks on this machine.
    #[must_use]
    pub fn here(&self, layout: &Layout) -> usize {
        self.processes.as_ref().map_or_else(|| layout.ranks(), |processes| processes.here())
    }
    /// The same network without a trace.
    #[must_use]
    pub fn untraced(&self) -> Self {
        Self { trace: None, profile: 0, ..self.clone() }
    }
    /// The same network with profiles of so many steps in its trace; of nothing else, if no trace was kept.
    #[must_use]
    pub fn profiling(self, steps: usize) -> Self {
        Self { trace: Some(self.trace.unwrap_or_else(Trace::of_profiles)), profile: steps, ..self }
    }
    /// Checks that every link joins ranks of one of these layouts, and that a rank may wait for another.
    ///
    /// # Errors
    /// If a link is along an axis that none of them splits, or an axis has two links; if waits are limited or
    /// counted, and no layout has two ranks.
    pub fn fits(&self, layouts: &[Layout]) -> Result<()> {
        let waits = [("timeout", self.timeout.is_some()), ("stragglers", self.counts_waits)];
        let given = waits.iter().find(|(_, given)| *given);
        if let Some((flag, _)) = given.filter(|_| layouts.iter().all(|layout| layout.ranks() == 1)) {
            bail!("--{flag} is for ranks that wait for others, but the layout has 1 rank; leave it out");
        }
        for (n, (axis, link)) in self.links.iter().enumerate() {
            if let Some((_, before)) = self.links[..n].iter().find(|(other, _)| other == axis) {
                bail!("--link gives the {axis} axis two links, {before} and {link}; give each axis one");
            }
            if layouts.iter().all(|layout| layout.size(*axis) == 1) {
                let whose = match layouts {
                    [layout] => format!("the layout {layout} has no {axis} ranks"),
                    _ => format!("none of the compared layouts has {axis} ranks"),
                };
                bail!("--link {axis}={link}: {whose}; split that axis, or leave the link out");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use comm::{CommError, Reduce};
    use std::sync::{Mutex, mpsc};
    use std::time::Instant;
    use tensor::{Category, Cpu, Tensor};

    fn layout(text: &str) -> Layout {
        text.parse().unwrap()
    }

    /// Kills: a limit that is not passed on, a trace without the failed run, a table that is lost on the way.
    #[test]
    fn a_rank_that_never_comes_is_told_with_the_last_calls() {
        let trace = Trace::new();
        let network = Network {
            timeout: Some(Duration::from_millis(20)),
            trace: Some(trace.clone()),
            ..Network::default()
        };
        let (failed, reported) = mpsc::channel();
        let (failed, reported) = (Mutex::new(failed), Mutex::new(reported));
        let run = |_: Cpu<f32>, mesh: comm::Mesh<_>| {
            if mesh.rank() == 1 {
                reported.lock().unwrap().recv().unwrap(); // comes when nobody waits any more
                return Ok(());
            }
            let outcome = mesh.group(Axis::Tp).named("a loss").barrier();
            failed.lock().unwrap().send(()).unwrap();
            outcome
        };
        let world = network.world(&layout("tp=2"), "waiting").unwrap();
        assert!(format!("{world:?}").contains("limit: 20ms"), "{world:?}");
        let error = crate::Error::from(world.run(run).unwrap_err());
        assert!(error.why.starts_with("rank 0: ") && error.to_string() == error.why, "{error}");
        let table = error.calls.unwrap().to_string();
        let is_row = |row: &&str| row.contains("barrier over tp for a loss at ") && !row.starts_with("rank ");
        let row = table.lines().find(is_row).expect("its call");
        assert!(row.trim_start().starts_with("0 ") && row.contains("failed after"), "{table}");
        let runs = trace.runs();
        assert_eq!((runs.len(), runs[0].name.as_str(), runs[0].ranks.len()), (1, "waiting under tp=2", 2));
        assert!(Network::default().timeout.is_none() && network.untraced().trace.is_none());
    }

    /// Kills: a link of another axis, one that is forgotten. A lower bound: such a link takes so long at
    /// least.
    #[test]
    fn links_take_their_time_along_their_axis() {
        let link: Link = "0s,100kB/s".parse().unwrap();
        let network = Network { links: vec![(Axis::Dp, link)], ..Network::default() };
        let run = |device: Cpu<f32>, mesh: comm::Mesh<_>| {
            let mut x = Tensor::from_fn(&device, Category::Buffers, 10, 25, |_| 1.0f32); // 1 kB
            let begun = Instant::now();
            mesh.group(Axis::Dp).all_reduce(&mut x, Reduce::Sum)?;
            Ok::<_, CommError>((begun.elapsed(), x.read().unwrap()[0]))
        };
        for (time, sum) in network.world(&layout("tp=2,dp=2"), "a sum").unwrap().run(run).unwrap() {
            assert!(sum == 2.0 && time >= Duration::from_millis(10), "{sum} in {time:?}"); // 2(n−1)/n of 1 kB
        }
    }
}
