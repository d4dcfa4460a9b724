"""What :mod:`privrob.suite.site` is put together from: what is shown, the pages, the notebooks, the library reference."""
