"""SQL of billing: price book, periods, charges, adjustments, credits, invoices, exports and their deliveries."""
