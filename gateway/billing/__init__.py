"""What usage costs: the price book, billing periods, credits and invoices. Pure: knows neither SQL nor HTTP."""
