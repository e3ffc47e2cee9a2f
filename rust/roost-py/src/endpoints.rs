//! The endpoints of an actor class, as the data lane looks them up: once a message.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::ops::RangeInclusive;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::ids::IdHasher;

/// One endpoint.
pub(crate) struct Endpoint {
    /// Its `EndpointInfo`.
    pub(crate) info: Py<PyAny>,
    /// The function, of an `async def` endpoint that runs alone.
    pub(crate) quick: Option<Py<PyAny>>,
    pub(crate) name: Arc<str>,
    /// A plain call has at least so many arguments, and at most so many.
    pub(crate) positional: RangeInclusive<usize>,
}

impl Endpoint {
    pub(crate) fn new(info: &Bound<'_, PyAny>) -> PyResult<Self> {
        let quick = info.getattr("quick")?;
        Ok(Self {
            info: info.clone().unbind(),
            quick: (!quick.is_none()).then(|| quick.unbind()),
            name: Arc::from(info.getattr("name")?.extract::<String>()?),
            positional: info.getattr("positional_min")?.extract()?
                ..=info.getattr("positional_max")?.extract()?,
        })
    }
}

/// All endpoints of a class, by name.
#[derive(Default)]
pub(crate) struct Endpoints(HashMap<Box<[u8]>, Arc<Endpoint>, BuildHasherDefault<IdHasher>>);

impl Endpoints {
    /// From the class's own table.
    pub(crate) fn from_dict(endpoints: &Bound<'_, PyDict>) -> PyResult<Self> {
        let mut table = Self::default();
        for (name, info) in endpoints.iter() {
            table.0.insert(
                name.extract::<String>()?.into_bytes().into(),
                Arc::new(Endpoint::new(&info)?),
            );
        }
        Ok(table)
    }

    pub(crate) fn get(&self, name: &str) -> Option<Arc<Endpoint>> {
        self.0.get(name.as_bytes()).map(Arc::clone)
    }
}
