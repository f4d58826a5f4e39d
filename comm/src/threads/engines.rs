//! Engines of one run of a world: one for each list of ranks that form a group.
use super::engine::Threads;
use super::slow::{Queues, Slow};
use super::watch::Watch;
use crate::process::Order;
use crate::shared::SharedPlace;
use crate::sync::{Mutex, lock};
use crate::{Axis, Engine, Engines, Grid, Members};
use algorithms::Link;
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use tensor::Host;

/// All engines of a run.
pub(crate) struct AllEngines<P> {
    place: P,
    apart: Option<Arc<Order>>, // set if this process has only one of the ranks
    grid: Arc<Grid>,
    links: Vec<(Axis, Link)>,
    queues: Arc<Queues>,
    watch: Arc<Watch>,
    known: Mutex<BTreeMap<Arc<[usize]>, Arc<Threads<P>>>>, // by their members
}

impl<P: SharedPlace> AllEngines<P> {
    /// Makes the engines of ranks with these links along axes; each group's is created on first use.
    pub(crate) fn new(
        (place, apart): (P, Option<Arc<Order>>),
        grid: &Arc<Grid>,
        links: &[(Axis, Link)],
        watch: &Arc<Watch>,
    ) -> Self {
        let (grid, links, watch) = (grid.clone(), links.to_vec(), watch.clone());
        Self { place, apart, grid, links, queues: Arc::default(), watch, known: Mutex::default() }
    }
    /// Returns the slowest of the links along the axes along which these ranks differ.
    fn link(&self, members: &[usize]) -> Option<Link> {
        let places = |axis| members.iter().map(move |&rank| self.grid.coordinate(axis, rank));
        let differ = |axis| places(axis).any(|place| Some(place) != places(axis).next());
        self.links.iter().filter(|(axis, _)| differ(*axis)).map(|(_, link)| *link).reduce(Link::slower)
    }
    /// Erases the type of these engines. Those of the host are compiled once, in this crate, instead of in
    /// every crate that starts a world.
    pub(crate) fn shared(self) -> Arc<dyn Engines<P>> {
        fn of_host(world: AllEngines<Host>) -> Arc<dyn Engines<Host>> {
            Arc::new(world)
        }
        let mut world = Some(self);
        let host =
            (&mut world as &mut dyn Any).downcast_mut::<Option<AllEngines<Host>>>().and_then(Option::take);
        match host.map(of_host) {
            Some(host) => (&host as &dyn Any).downcast_ref().cloned().expect("the host is the place"),
            None => Arc::new(world.expect("not taken")),
        }
    }
}

impl<P: SharedPlace> Engines<P> for AllEngines<P> {
    fn of(&self, members: &Members) -> Arc<dyn Engine<P>> {
        let members: Arc<[usize]> = members.iter().collect();
        let slow = |link| Arc::new(Slow::new(link, members.clone(), self.queues.clone()));
        let new = || {
            Arc::new(Threads::new(
                (self.place.clone(), self.apart.clone()),
                members.clone(),
                &self.watch,
                self.link(&members).map(slow),
            ))
        };
        lock(&self.known).entry(members.clone()).or_insert_with(new).clone()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Kills: the link of another axis, the first of several, one that slows ranks which do not differ along
    /// its axis.
    #[test]
    fn a_group_has_the_slowest_link_of_the_axes_along_which_it_differs() {
        let sizes = [(Axis::Dp, 2), (Axis::Cp, 2), (Axis::Tp, 2), (Axis::Ep, 4)];
        let grid = Arc::new(Grid::new(&sizes, 8).unwrap());
        let link = |link: &str| link.parse::<Link>().unwrap();
        let (dp, tp, ep) = (link("1us,1GB/s"), link("9us,5GB/s"), link("2us,4GB/s"));
        let links = [(Axis::Dp, dp), (Axis::Tp, tp), (Axis::Edp, ep)];
        let watch = Arc::new(Watch::alone(8, Duration::from_secs(1)));
        let of = |links: &[_], members: &[usize]| {
            AllEngines::new((Host::default(), None), &grid, links, &watch).link(members)
        };
        assert_eq!(
            [of(&links[..2], &[0, 4]), of(&links, &[2, 3]), of(&links, &[0, 2])],
            [Some(dp), Some(tp), None]
        );
        assert_eq!([of(&links[..2], &[0, 1, 4, 5]), of(&links[..2], &[0, 5])], [Some(link("9us,1GB/s")); 2]);
        assert_eq!(of(&links, &[1, 5]), Some(link("2us,1GB/s")), "edp and dp lie over the same ranks");
        assert_eq!(of(&[], &[0, 5]), None);
    }
}
