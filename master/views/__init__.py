"""Views of a run for people: status, report, plots, page. They read a run and never change it."""
